package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// providers are the rows of providers of which more is allocated than they give: a
// ratio was lowered, a reserve raised, or the host has become smaller. Nothing heals
// that but guests that leave.
func (j *joined) providers() []Row {
	if j.in.Tree == nil || j.in.Placement.Why != "" {
		return nil
	}
	var out []Row
	for _, p := range append(slices.Clone(j.in.Tree.Providers), j.in.Tree.Retired...) {
		used := j.used(p.UUID)
		if len(p.Inventories) == 0 {
			continue // known by its uuid alone
		}
		var over []Difference
		var words []string
		code := CodeOverCapacity
		for _, class := range slices.Sorted(maps.Keys(used)) {
			inv, has := p.Inventories[class]
			if !has {
				code = CodeNoInventory
			}
			if c := inv.Capacity(); used[class] > c {
				over = append(over, Difference{Provider: p.Name, Class: class, Want: c, Have: used[class]})
				words = append(words, fmt.Sprintf("%s %d of %d", class, used[class], c))
			}
		}
		if len(over) > 0 {
			out = append(out, Row{
				Subject: p.UUID, Kind: KindProvider, Name: p.Name, Verdict: Differs, Code: code, Differences: over,
				Message:    "more is allocated of it than it gives: " + strings.Join(words, ", "),
				Change:     "move guests away, or give back what was reserved or the ratio that was lowered",
				Quarantine: "no write of Placement's makes a host larger",
			})
		}
	}
	return out
}
