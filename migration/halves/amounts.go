package halves

import (
	"maps"

	"berth/placementclient"
)

// Amounts is what a consumer holds: by provider uuid and resource class. No class of
// it is zero, and no provider without a class, as Placement has it.
type Amounts = map[string]placementclient.Resources

// Split gives what the migration keeps while the instance, which held old, holds next.
func Split(old, next Amounts) Amounts {
	return each(old, func(rp, class string, n int64) int64 { return n - next[rp][class] })
}

// Stayed is the part of old that stays with the instance while it holds next: what
// Split leaves.
func Stayed(old, next Amounts) Amounts {
	return each(old, func(rp, class string, n int64) int64 { return min(n, next[rp][class]) })
}

// Sum is what both hold together.
func Sum(a, b Amounts) Amounts {
	out := each(a, func(_, _ string, n int64) int64 { return n })
	for rp, r := range b {
		for class, n := range r {
			if n <= 0 {
				continue
			}
			if out[rp] == nil {
				out[rp] = placementclient.Resources{}
			}
			out[rp][class] += n
		}
	}
	return out
}

// each computes every amount anew, and leaves out what is nothing.
func each(a Amounts, f func(rp, class string, n int64) int64) Amounts {
	out := Amounts{}
	for rp, r := range a {
		for class, n := range r {
			if n = f(rp, class, n); n <= 0 {
				continue
			}
			if out[rp] == nil {
				out[rp] = placementclient.Resources{}
			}
			out[rp][class] = n
		}
	}
	return out
}

// only are the amounts of some providers.
func only(a Amounts, keep func(rp string) bool) Amounts {
	out := Amounts{}
	for rp, r := range a {
		if keep(rp) {
			out[rp] = maps.Clone(r)
		}
	}
	return out
}

// sums are the amounts of each class, wherever they are held.
func sums(a Amounts) placementclient.Resources {
	out := placementclient.Resources{}
	for _, r := range a {
		for class, n := range r {
			out[class] += n
		}
	}
	return out
}

// Same reports whether both are the same amounts of the same providers.
func Same(a, b Amounts) bool {
	return maps.EqualFunc(a, b, func(x, y placementclient.Resources) bool { return maps.Equal(x, y) })
}
