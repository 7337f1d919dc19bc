package store

// Validate is what Enqueue holds mutations to: nil, or fault.Invalid for one that no
// file could take.
func Validate(mutations []Mutation) error {
	for _, m := range mutations {
		if err := m.validate(); err != nil {
			return err
		}
	}
	return nil
}
