package pci

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"berth/topology"
)

// address is what a Spec says of addresses: a test for each part, nil for any.
type address struct {
	parts [4]func(spelt string, value uint64) bool

	// single says that exactly one function can be meant, whose VFs are then
	// meant too, if it is a PF.
	single bool
}

// parts are those of an address, in the order in which they are written.
var parts = [4]struct {
	name string
	most uint64
}{{"domain", math.MaxUint32}, {"bus", 0xff}, {"slot", 0x1f}, {"function", 0x7}}

func (a *address) matches(p topology.PCIAddress) bool {
	values := [4]uint64{uint64(p.Domain), uint64(p.Bus), uint64(p.Device), uint64(p.Function)}
	for i, width := range [4]int{4, 2, 2, 1} {
		if a.parts[i] != nil && !a.parts[i](fmt.Sprintf("%0*x", width, values[i]), values[i]) {
			return false
		}
	}
	return true
}

func parseAddress(v any) (address, []Fault) {
	switch v := v.(type) {
	case nil:
		return address{}, nil
	case string:
		return parseGlob(v)
	case map[string]any:
		return parseRegexes(v)
	}
	return address{}, []Fault{{"address", fmt.Sprintf("%v is neither a string nor a table of domain, bus, slot and function", v)}}
}

// parseGlob reads [[[[domain]:]bus]:][slot][.[function]]. Fields are counted from
// the slot leftwards, and one that is left out is any.
func parseGlob(text string) (address, []Fault) {
	rest, function, _ := strings.Cut(text, ".")
	fields := strings.Split(rest, ":")
	if len(fields) > 3 {
		return address{}, []Fault{{"address", fmt.Sprintf("%q is not DOMAIN:BUS:SLOT.FUNCTION", text)}}
	}
	for len(fields) < 3 {
		fields = append([]string{"*"}, fields...)
	}
	a := address{single: true}
	var faults []Fault
	for i, field := range append(fields, function) {
		field = strings.TrimSpace(field)
		if field == "" || field == "*" {
			a.single = false
			continue
		}
		n, err := parseHex(field, parts[i].most)
		if err != nil {
			faults = append(faults, Fault{"address", fmt.Sprintf("%s of %q: %v", parts[i].name, text, err)})
			continue
		}
		a.parts[i] = func(_ string, value uint64) bool { return value == n }
	}
	return a, faults
}

func parseRegexes(table map[string]any) (address, []Fault) {
	a := address{single: true}
	var faults []Fault
	known := map[string]bool{}
	for i, part := range parts {
		known[part.name] = true
		v, there := table[part.name]
		if !there {
			a.single = false
			continue
		}
		key := "address." + part.name
		text, ok := v.(string)
		if !ok {
			faults = append(faults, Fault{key, fmt.Sprintf("%v is not a string", v)})
			continue
		}
		// Python's match, which Nova uses, begins at the first character and ends
		// anywhere.
		re, err := regexp.Compile(`(?i)^(?:` + text + `)`)
		if err != nil {
			faults = append(faults, Fault{key, fmt.Sprintf("%q is not a regular expression of RE2: %v", text, err)})
			continue
		}
		if n, err := parseHex(text, math.MaxUint64); err == nil {
			if n > part.most {
				faults = append(faults, Fault{key, fmt.Sprintf("%q is above %x", text, part.most)})
			}
		} else {
			a.single = false
		}
		a.parts[i] = func(spelt string, _ uint64) bool { return re.MatchString(spelt) }
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if !known[name] {
			faults = append(faults, Fault{"address." + name, "unknown key; want domain, bus, slot or function"})
		}
	}
	return a, faults
}
