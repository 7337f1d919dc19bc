package agent

import (
	"strings"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
	"berth/topology"
)

// options gives what a move of a guest is carried out with, and who said each: the request,
// the flavor that the guest has, this host's configuration as it is now. Of a move that is
// not live the bandwidth alone is left. What cannot be together is fault.Invalid.
func (s migrationService) options(doing, kind string, f topology.Flavor, said migration.Options) (migration.Options, map[string]options.From, error) {
	ofFlavor, wrong := options.FromSpecs(f.ExtraSpecs)
	if len(wrong) > 0 {
		// Refused where a flavor is read; this one came from an agent that knows more.
		s.a.log.Warn("extra specs that this agent does not know are left out of a move", "flavor", f.Name, "reasons", wrong)
	}
	live, from := options.Merge(
		options.Layer{From: options.FromRequest, Live: said},
		options.Layer{From: options.FromFlavor, Live: ofFlavor},
		options.Layer{From: options.FromConfig, Live: s.a.config().Migration.Live()},
	)
	if kind != migration.TypeLiveMigration {
		live, from = options.Offline(live, from)
	}
	if bad := live.ValidateFrom(from); len(bad) > 0 {
		return live, from, fault.Refuse(fault.Invalid, doing, bad...)
	}
	return live, from, nil
}

// ofGuestsThatRun are the reasons against a request's words that mean nothing to a guest that is
// off: such a move would leave them out, and nobody would know.
func ofGuestsThatRun(r api.Migrate) []fault.Reason {
	var out []fault.Reason
	if of := options.OfGuestsThatRun(r.Options); len(of) > 0 {
		out = append(out, fault.Reason{
			Code: "options", Message: "of the options bandwidth alone is of a guest that is off", Change: "leave out " + strings.Join(of, ", ") + ", or ask for a live migration",
		})
	}
	if r.Priority != 0 {
		out = append(out, fault.Reason{
			Code: "priority", Message: "a priority is of a live migration: no other move of one guest waits for its turn", Change: "leave it out, or ask for a live migration",
		})
	}
	return out
}

// flavorOf is the flavor of a guest as this host's ledger has it; the zero one where it has
// none.
func (a *Agent) flavorOf(instance string) topology.Flavor {
	in, _ := a.tracker.Instance(instance)
	return in.Flavor
}
