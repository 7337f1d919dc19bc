package inventory

import (
	"maps"
	"slices"
)

// Features are the CPU features that have traits.
func Features() []string { return append(slices.Sorted(maps.Keys(x86Traits)), armTraits...) }
