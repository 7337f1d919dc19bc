package candidates

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth/internal/fault"
	"berth/placementclient"
)

// asked is what extra specs say in Placement's words.
type asked struct {
	resources           placementclient.Resources // of classes that no claim counts
	required, forbidden []string                  // traits of the unnumbered group, sorted
	groups              map[string]placementclient.RequestGroup
	policy              string // "" where none is named
}

var (
	specKey   = regexp.MustCompile(`^(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)$`)
	className = regexp.MustCompile(`^[A-Z0-9_]{1,255}$`)
)

// counted are the classes that a claim counts.
var counted = []string{placementclient.ClassVCPU, placementclient.ClassPCPU, placementclient.ClassMemoryMB, placementclient.ClassDiskGB}

// readSpecs reads the extra specs that Nova hands on to Placement. The error is
// fault.Invalid with every reason.
func readSpecs(specs map[string]string) (asked, error) {
	a := asked{resources: placementclient.Resources{}, groups: map[string]placementclient.RequestGroup{}}
	var wrong []fault.Reason
	bad := func(key, format string, args ...any) {
		wrong = append(wrong, fault.Reason{
			Code: "extra_spec_invalid", Message: "flavor: " + key + ": " + fmt.Sprintf(format, args...), Have: key, Change: "correct the flavor",
		})
	}
	for _, key := range slices.Sorted(maps.Keys(specs)) {
		value := strings.TrimSpace(specs[key])
		if key == "group_policy" {
			if a.policy = value; value != "none" && value != "isolate" {
				bad(key, "%q: want none or isolate", value)
			}
			continue
		}
		m := specKey.FindStringSubmatch(key)
		if m == nil {
			continue
		}
		suffix, name := m[2], m[3]
		if !className.MatchString(name) {
			bad(key, "%q: want capitals, digits and underscores", name)
			continue
		}
		g := a.groups[suffix]
		if m[1] == "resources" {
			n, err := strconv.ParseInt(value, 10, 64)
			switch {
			case err != nil || n < 0 || n > placementclient.MaxInt:
				bad(key, "%q: want a whole number from 0 to %d", value, placementclient.MaxInt)
			case n == 0 || suffix == "" && slices.Contains(counted, name):
			case suffix == "":
				a.resources[name] = n
			default:
				if g.Resources == nil {
					g.Resources = placementclient.Resources{}
				}
				g.Resources[name] = n
			}
		} else {
			switch value {
			case "required":
				g.Required = append(g.Required, name)
			case "forbidden":
				g.Forbidden = append(g.Forbidden, name)
			default:
				bad(key, "%q: want required or forbidden", value)
			}
		}
		a.groups[suffix] = g
	}
	a.required, a.forbidden = a.groups[""].Required, a.groups[""].Forbidden
	delete(a.groups, "")
	for _, suffix := range slices.Sorted(maps.Keys(a.groups)) {
		g := a.groups[suffix]
		switch {
		case len(g.Required)+len(g.Forbidden) == 0 && len(g.Resources) == 0:
			delete(a.groups, suffix)
		case len(g.Resources) == 0:
			bad("trait"+suffix, "there is no resources%s that says of what provider", suffix)
		case ownSuffix(suffix):
			bad("resources"+suffix, "groups whose names begin with %s are made of the guest's own cells and devices", strings.TrimRight(suffix, "0123456789"))
		}
	}
	if len(wrong) > 0 {
		return a, fault.Refuse(fault.Invalid, "read what the flavor asks of Placement", wrong...)
	}
	return a, nil
}

// The groups that Build makes, with a number behind.
const (
	suffixCell   = "_CELL"
	suffixMemory = "_MEM"
	suffixDevice = "_PCI"
)

func ownSuffix(suffix string) bool {
	return slices.Contains([]string{suffixCell, suffixMemory, suffixDevice}, strings.TrimRight(suffix, "0123456789"))
}
