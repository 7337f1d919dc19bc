package agent

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"berth/agent/api"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// conducted names a move and the host that conducts it; host is empty for this one.
type conducted struct{ migration, host string }

// silent says, where its conductor does not answer, who that is and why it has to.
func (c conducted) silent(doing string, err error) error {
	if !errors.Is(err, fault.Unavailable) {
		return err
	}
	reasons := fault.ReasonsOf(err)
	if len(reasons) == 0 {
		reasons = []fault.Reason{{Code: "host_silent", Message: err.Error()}}
	}
	return fault.Refuse(fault.Unavailable, doing, append([]fault.Reason{{
		Code: "conductor_silent", Message: "host " + c.host + " conducts migration " + c.migration + ", and does not answer; the guest is where it is meanwhile", Want: c.host,
		Change: "see to the agent on " + c.host + ", and ask again",
	}}, reasons...)...)
}

// conductedHere gives a move that this agent conducts, by its uuid or as the one of a
// guest that is not over.
func (a *Agent) conductedHere(ctx context.Context, ref string) (migration.Migration, bool) {
	if m, err := a.conductor.Get(ctx, ref); err == nil {
		return m, true
	}
	list, err := a.conductor.List(ctx)
	if err != nil {
		return migration.Migration{}, false
	}
	for _, m := range list {
		if m.InstanceUUID == ref && !m.Done() {
			return m, true
		}
	}
	return migration.Migration{}, false
}

// conductedByName is conductedHere of a guest that is on another host, by its name.
func (a *Agent) conductedByName(ctx context.Context, doing, name string) (m migration.Migration, known bool, err error) {
	list, err := a.conductor.List(ctx)
	if err != nil {
		return m, false, err
	}
	return moveOf(list, doing, name)
}

// moveOf gives the move of a guest on another host, by the guest's name. Two guests of two
// hosts may have one: then it is refused, and told how to say which.
func moveOf(list []migration.Migration, doing, name string) (m migration.Migration, known bool, err error) {
	for _, one := range list {
		if one.InstanceName != name || one.Done() || one.Conductor == "" {
			continue
		}
		if known && one.InstanceUUID != m.InstanceUUID {
			return migration.Migration{}, false, fault.Refuse(fault.Invalid, doing, fault.Reason{
				Code: "name_ambiguous", Message: "two guests called " + name + " are on moves that this host conducts: " + m.InstanceUUID + " and " + one.InstanceUUID,
				Have: name, Change: "say the uuid of the guest, or of the migration",
			})
		}
		m, known = one, true
	}
	return m, known, nil
}

// awaitedElsewhere gives the move that brought a guest here and waits to be confirmed or
// reverted by its source, by the guest's uuid: its context is in this ledger without a
// claim of its own.
func (a *Agent) awaitedElsewhere(instance string) (claims.MigrationContext, bool) {
	for _, c := range a.tracker.Contexts() {
		if c.Source != a.name && c.Instance == instance {
			return c, true
		}
	}
	return claims.MigrationContext{}, false
}

// conductedElsewhere gives a move of which this host is a side, by its uuid or by its
// guest's: its source conducts it, or a third host.
func (a *Agent) conductedElsewhere(ref string) (conducted, bool) {
	var all []claims.MigrationContext
	for _, c := range a.tracker.List() {
		if c.Context != nil {
			all = append(all, *c.Context)
		}
	}
	for _, c := range append(all, a.tracker.Contexts()...) {
		if by := cmp.Or(c.Conductor, c.Source); by != a.name && (c.Migration == ref || c.Instance == ref) {
			return conducted{c.Migration, by}, true
		}
	}
	// What is left of one that is over here.
	if b, known := (parties{a.tracker}).Parties(ref, ""); known && b.Conductor != a.name && b.Conductor != b.Source {
		return conducted{ref, b.Conductor}, true
	}
	return conducted{}, false
}

// near is whoConducts, of a move that this host has something of.
func (s migrationService) near(ctx context.Context, doing, ref string) (conducted, error) {
	if m, ok := s.a.conductedHere(ctx, ref); ok {
		return conducted{migration: m.UUID}, nil
	}
	if c, ok := s.a.conductedElsewhere(ref); ok {
		return s.passOn(ctx, doing, c)
	}
	// Its guest's name. While libvirt does not answer nobody is called so.
	if id, err := s.a.host.Resolve(ctx, ref); err == nil {
		if m, ok := s.a.conductedHere(ctx, id); ok {
			return conducted{migration: m.UUID}, nil
		}
		if c, ok := s.a.conductedElsewhere(id); ok {
			return s.passOn(ctx, doing, c)
		}
	}
	if m, ok, err := s.a.conductedByName(ctx, doing, ref); err != nil || ok {
		return conducted{migration: m.UUID}, err
	}
	if s.a.host.External().Foreign(claims.Owner{Migration: ref}) { // its guest has left this host
		return s.passOn(ctx, doing, conducted{migration: ref})
	}
	return conducted{}, noMove(doing, "migration "+ref+" is not known here", ref)
}

// whoConducts finds the move that ref names, a migration's uuid or the name or uuid of
// its guest, and the host that conducts it. A guest that is not here is looked for on
// the other hosts; a migration's uuid is not.
func (s migrationService) whoConducts(ctx context.Context, doing, ref string) (conducted, error) {
	if at, err := s.near(ctx, doing, ref); !errors.Is(err, fault.NotFound) {
		return at, err
	}
	id, err := s.a.host.Resolve(ctx, ref)
	switch {
	case err == nil:
		// A guest that has gone on by a move that is over here may be on the next.
		if inst, ok := s.a.tracker.Instance(id); !ok || inst.Token.State != claims.TokenSurrendered {
			return conducted{}, noMove(doing, "instance "+ref+" is on no move", ref)
		}
	case !errors.Is(err, fault.NotFound):
		return conducted{}, err
	}
	if from, relayed := api.PassedOn(ctx); relayed {
		return conducted{}, noMove(doing, "host "+s.a.name+" knows no move "+ref+", though "+from+" believes so", ref)
	}
	at, err := s.find(ctx, doing, ref)
	if err != nil {
		return conducted{}, err
	}
	peer, err := s.a.peers.client(at)
	if err != nil {
		return conducted{}, err
	}
	inst, err := peer.Instance(ctx, ref)
	switch {
	case err != nil:
		return conducted{}, err
	case inst.Conductor == s.a.name:
		return conducted{}, fault.Refuse(fault.InDoubt, doing, fault.Reason{
			Code: "journal_lost", Message: "host " + at + " has recorded that this host conducts migration " + inst.Migration + ", of which nothing is known here", Have: inst.Migration,
			Change: "berth migration settle " + inst.Migration + " --guest-is-at HOST --gone " + s.a.name + ` --reason "what you have checked", with -c ` + at,
		})
	case inst.Conductor != "":
		return s.passOn(ctx, doing, conducted{inst.Migration, inst.Conductor})
	case inst.Resize != nil:
		return s.passOn(ctx, doing, conducted{inst.Resize.Migration, inst.Resize.Source})
	case inst.Migration != "":
		return conducted{inst.Migration, at}, nil
	}
	return conducted{}, noMove(doing, "instance "+ref+", on "+at+", is on no move", ref)
}

// passOn lets a request be passed on once: two hosts that each believe the other to
// conduct the move would pass it on for ever. A tool's own migration has no conductor.
func (s migrationService) passOn(ctx context.Context, doing string, c conducted) (conducted, error) {
	if s.a.host.External().Foreign(claims.Owner{Migration: c.migration}) {
		no := fault.Reason{
			Code: "tools_migration", Message: "migration " + c.migration + " is of a tool that moves guests by itself", Have: c.migration,
			Change: "ask that tool; it tells Berth what it does: berth external --help",
		}
		if x, waits := s.a.tracker.Context(c.migration); waits {
			no.Change = strings.Join(s.a.host.NextOf(x, ""), ", or ")
		}
		return conducted{}, fault.Refuse(fault.Forbidden, doing, no)
	}
	if from, relayed := api.PassedOn(ctx); relayed {
		return conducted{}, fault.Refuse(fault.Unavailable, doing, fault.Reason{
			Code: "conductor_unclear", Message: "host " + s.a.name + " does not conduct migration " + c.migration + " and believes that " + c.host + " does, and " + from + " believes otherwise",
			Change: "berth migration show " + c.migration + ", with -c for both hosts",
		})
	}
	return c, nil
}

func noMove(doing, message, ref string) error {
	return fault.Refuse(fault.NotFound, doing, fault.Reason{
		Code: "migration_unknown", Message: message, Want: ref, Change: "berth migration list, with -c for other hosts; a move is conducted by the host that the guest left, or by the one that was asked with --share-nothing",
	})
}
