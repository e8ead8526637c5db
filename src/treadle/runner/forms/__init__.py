"""From plans to the forms in which attention may want to be told where contexts lie."""
