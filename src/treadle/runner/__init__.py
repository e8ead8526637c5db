"""StepPlan → flat input arrays → forward → logits → tokens. Owns the row tables."""
