package placement

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The standard names, one a line: the traits of os-traits 2.9.0 and the classes
// of os-resource-classes 1.1.0 in that package's order, as the real service of
// the same age lists them.
var (
	//go:embed standard_traits.txt
	standardTraitsText string
	//go:embed standard_classes.txt
	standardClassesText string
)

var standardTraits = sync.OnceValue(func() []string { return strings.Fields(standardTraitsText) }) // sorted

var standardClasses = sync.OnceValue(func() map[string]int64 {
	ids := map[string]int64{}
	for i, name := range strings.Fields(standardClassesText) {
		ids[name] = int64(i)
	}
	return ids
})

// customClassIDs start above every standard one: the order of classes is that of
// their ids.
const customClassIDs = 10000

// classID gives a class's place in the order of classes, and whether it exists.
func (t *tx) classID(name string) (int64, bool) {
	if id, found := standardClasses()[name]; found {
		return id, true
	}
	if c := lookup(t.classes, t.b.classes, name); c != nil {
		return customClassIDs + c.Seq, true
	}
	return 0, false
}

// byClassID sorts class names by their ids.
func (t *tx) byClassID(names []string) []string {
	slices.SortStableFunc(names, func(a, b string) int {
		x, _ := t.classID(a)
		y, _ := t.classID(b)
		return int(x - y)
	})
	return names
}

// allClasses is every class in order.
func (t *tx) allClasses() []string {
	return t.byClassID(slices.AppendSeq(merged(t.classes, t.b.classes), maps.Keys(standardClasses())))
}

// hasTrait says whether the trait exists.
func (t *tx) hasTrait(name string) bool {
	if _, standard := slices.BinarySearch(standardTraits(), name); standard {
		return true
	}
	return lookup(t.traits, t.b.traits, name) != nil
}

// allTraits is every trait, the standard ones first.
func (t *tx) allTraits() []string {
	custom := merged(t.traits, t.b.traits)
	slices.Sort(custom)
	return append(slices.Clone(standardTraits()), custom...)
}

func merged[T any](changed table[T], committed map[string]*T) []string {
	var out []string
	for name := range committed {
		if _, there := changed[name]; !there {
			out = append(out, name)
		}
	}
	for name, v := range changed {
		if v != nil {
			out = append(out, name)
		}
	}
	return out
}
