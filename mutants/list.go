package mutants

// List returns all mutants, in the order of the invariants they break.
func List() []Mutant {
	return nil
}
