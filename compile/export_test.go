package compile

// Sessions returns how many sessions r remembers.
func Sessions(r *Region) int { return len(r.traces) }
