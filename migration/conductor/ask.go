package conductor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/candidates"
	"berth/migration/operation"
	"berth/migration/options"
	"berth/migration/task"
	"berth/placementclient"
	"berth/topology"
)

// askTries is how often a verb is asked whose answer does not come, before the
// step counts as failed and is undone.
const askTries = 3

// ref names a verb of the current attempt.
func (s *story) ref(step string) migration.Ref {
	return migration.Ref{Migration: s.name(), Instance: s.instance, Attempt: s.rec.Attempt, Step: step}
}

type finder func(ctx context.Context) (migration.Host, error)

func (s *story) host(name string) finder {
	return func(ctx context.Context) (migration.Host, error) { return s.c.cfg.Hosts(ctx, name) }
}

// source finds the host that the guest leaves.
func (s *story) source(ctx context.Context) (migration.Host, error) {
	return s.c.cfg.Hosts(ctx, s.from)
}

// ask asks a host a verb, and again when the answer does not come: verbs are
// safe to repeat.
func (s *story) ask(ctx context.Context, timeout time.Duration, find finder, f func(context.Context, migration.Host) error) error {
	for try := 1; ; try++ {
		err := s.askOnce(ctx, timeout, find, f)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if k := fault.KindOf(err); try == askTries || k != fault.Unavailable && k != fault.InDoubt {
			return err
		}
		if err := s.c.cfg.Runtime.Sleep(ctx, time.Duration(try)*200*time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *story) askOnce(ctx context.Context, timeout time.Duration, find finder, f func(context.Context, migration.Host) error) error {
	ctx, cancel := s.c.cfg.Runtime.WithTimeout(ctx, timeout)
	defer cancel()
	h, err := find(ctx)
	if err != nil {
		return err
	}
	return f(ctx, h)
}

// atSource asks the source once; whoever calls it repeats by himself.
func (s *story) atSource(ctx context.Context, timeout time.Duration, f func(context.Context, migration.Host) error) error {
	return s.askOnce(ctx, timeout, s.source, f)
}

// destination is the host that the current attempt is about: the one that was chosen, or
// that the guest has been brought to, or its own.
func (s *story) destination(t *task.Task) (string, error) {
	s.c.mu.Lock()
	m := s.rec
	s.c.mu.Unlock()
	switch {
	case m.InPlace:
		return s.from, nil
	case m.Stage != migration.StageMove:
		return m.DestCompute, nil
	}
	var dst chosenDestination
	err := t.Output(migration.StepChooseDestination, &dst)
	return dst.Name, err
}

// atDestination asks the chosen destination, and again when no answer comes.
func (s *story) atDestination(ctx context.Context, t *task.Task, timeout time.Duration, f func(context.Context, migration.Host) error) error {
	name, err := s.destination(t)
	if err != nil {
		return err
	}
	return saidBy(name, s.ask(ctx, timeout, s.host(name), f))
}

// saidBy names the host in an error of its own.
func saidBy(name string, err error) error {
	if err == nil {
		return nil
	}
	return task.By(name, fmt.Errorf("host %s: %w", name, err))
}

// once asks the chosen destination once.
func (s *story) once(ctx context.Context, t *task.Task, timeout time.Duration, f func(context.Context, migration.Host) error) error {
	name, err := s.destination(t)
	if err != nil {
		return err
	}
	return saidBy(name, s.askOnce(ctx, timeout, s.host(name), f))
}

func (s *story) undoAtDestination(ctx context.Context, t *task.Task, timeout time.Duration, f func(context.Context, migration.Host) error) error {
	if name, err := s.destination(t); err == nil && s.givenUp(ctx, name) {
		return nil
	}
	return s.once(ctx, t, timeout, f)
}

// asks is one of the ways in which a step asks a host of the move: a host, and whether it is asked
// again when no answer comes.
type asks func(ctx context.Context, t *task.Task, timeout time.Duration, f func(context.Context, migration.Host) error) error

// sourceOnce is atSource.
func (s *story) sourceOnce(ctx context.Context, _ *task.Task, timeout time.Duration, f func(context.Context, migration.Host) error) error {
	return s.atSource(ctx, timeout, f)
}

// sourceAnswers asks the source, and again when no answer comes.
func (s *story) sourceAnswers(ctx context.Context, _ *task.Task, timeout time.Duration, f func(context.Context, migration.Host) error) error {
	return s.ask(ctx, timeout, s.source, f)
}

// order asks one host of the move for one operation that only says that it is done.
type order func(context.Context, *task.Task) error

// order is one of the current attempt.
func (s *story) order(asks asks, op operation.Step, step string) order {
	return func(ctx context.Context, t *task.Task) error { return s.request(ctx, t, asks, op, s.ref(step)) }
}

// orderOfMove is one of the attempt that brought or changed the instance.
func (s *story) orderOfMove(asks asks, op operation.Step, step string) order {
	return func(ctx context.Context, t *task.Task) error { return s.request(ctx, t, asks, op, s.made(step)) }
}

func (s *story) request(ctx context.Context, t *task.Task, asks asks, op operation.Step, ref migration.Ref) error {
	return asks(ctx, t, s.limitOf(op.Operation.Operation), func(ctx context.Context, h migration.Host) error { return op.Ask(ctx, h, ref) })
}

// do is an order as the work of a step.
func (o order) do(ctx context.Context, t *task.Task) (any, error) { return nil, o(ctx, t) }

// undo is an order as a step's undo. An agent that does not know the operation has never done what
// is to be undone.
func (o order) undo(ctx context.Context, t *task.Task) error {
	if err := o(ctx, t); !fault.HasReason(err, migration.ReasonPeerTooOld) {
		return err
	}
	return nil
}

// limitOf is for how long one request for an operation is waited for.
func (s *story) limitOf(op *migration.Operation) time.Duration {
	if op.Limit <= operation.Quick {
		return s.c.cfg.VerbTimeout
	}
	return s.c.cfg.SlowVerbTimeout
}

// outputs reads several outputs: name, target, name, target, …
func outputs(t *task.Task, pairs ...any) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if err := t.Output(pairs[i].(string), pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// context is the MigrationContext of the move.
func (s firstSteps) context(t *task.Task, from, to migration.Guest) migration.Context {
	// A step that needs the context comes after the choice; without it the name
	// would be empty and the destination would refuse.
	name, _ := s.destination(t)
	return migration.Context{
		Source: s.from, Destination: name, Conductor: s.c.cfg.Local,
		OldResources: from.Resources, NewResources: to.Resources,
		OldFlavor: from.Flavor, NewFlavor: to.Flavor, PowerState: from.PowerState,
		OldTopology: from.Topology, NewTopology: to.Topology,
		OldPCIRequests: from.PCIRequests, NewPCIRequests: to.PCIRequests,
		OldAssignment: from.Assignment,
	}
}

// precheckTime bounds the question to a named destination while somebody waits
// for the refusal. The check opens no disk and asks no hook: a host that takes
// longer is as good as away. Arbitrary.
const precheckTime = 10 * time.Second

// precheck refuses what cannot be, before anything is accepted, and chooses whether the
// first attempt is one in place. It changes nothing anywhere; the steps check again, since
// the world moves on.
func (s firstSteps) precheck(ctx context.Context, doing string) (migration.Guest, error) {
	src, err := s.lookAtSource(ctx, s.askOnce)
	if err != nil {
		return migration.Guest{}, fmt.Errorf("%s: %w", doing, err)
	}
	errs := []error{s.movable(src)}
	stays := s.kind == migration.TypeRebuild || s.kind == migration.TypeResize && !s.rec.ShareNothing && (len(s.asked()) == 0 || s.named == s.from)
	if stays {
		err = s.checkRoom(ctx, src)
		if s.rec.InPlace = err == nil || s.named != "" || s.kind == migration.TypeRebuild; s.rec.InPlace {
			s.rec.DestCompute = s.from
		} else {
			errs = append(errs, err)
		}
	}
	switch {
	case s.rec.InPlace:
	case len(s.asked()) > 0:
		errs = append(errs, s.precheckNamed(ctx, src))
		var held placementclient.Allocations
		if held, err = s.c.cfg.Placement.Allocations(ctx, s.instance); err == nil {
			s.known = &held // the first step's, which need not read it again
		}
	default:
		var names []string
		if names, err = s.candidates(ctx, src, nil); err == nil && s.untried(names) == "" {
			err = nowhere(s.instance)
		} else if err == nil && stays {
			errs = slices.DeleteFunc(errs, func(err error) bool { return fault.KindOf(err) == fault.DoesNotFit }) // it fits elsewhere
		}
	}
	errs = append(errs, err)
	return src.Guest, together(doing, src.Guest.Name, errs)
}

// precheckAll bounds the questions to all alternates together, as precheckTime does each.
// Arbitrary.
const precheckAll = 3 * precheckTime

// precheckNamed asks the hosts that were named until one would take the guest; where none
// would, it gives all their reasons.
func (s firstSteps) precheckNamed(ctx context.Context, src inspectedSource) error {
	ctx, cancel := s.c.cfg.Runtime.WithTimeout(ctx, precheckAll)
	defer cancel()
	var refused []migration.Refusal
	for _, name := range s.asked() {
		err := s.precheckOne(ctx, src, name)
		if err == nil {
			return nil
		}
		if len(s.asked()) == 1 {
			return err
		}
		refused = append(refused, migration.Refusal{DestCompute: name, Kind: fault.KindOf(err), Message: err.Error(), Reasons: reasonsOr(err)})
	}
	return refusals(migration.Migration{InstanceUUID: s.instance, Refusals: refused}, task.Keep(nil)).Err()
}

func (s firstSteps) precheckOne(ctx context.Context, src inspectedSource, name string) error {
	if name == s.from {
		return sameHost(src.Source, src.Source)
	}
	return s.askOnce(ctx, min(precheckTime, s.c.cfg.VerbTimeout), s.host(name), func(ctx context.Context, h migration.Host) error {
		answer, err := operation.CheckDestination.Ask(ctx, h, s.ref(migration.StepCheckDestination), s.checkRequest(src))
		if err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
		_, err = s.evacuationSteps().suits(src, answer)
		return err
	})
}

// asked are the destinations that were asked for, in the order in which they are tried.
func (s *story) asked() []string {
	return Request{Destination: s.named, Alternates: s.next}.destinations()
}

// checkRequest asks whether a guest could come, or be changed.
func (s firstSteps) checkRequest(src inspectedSource) migration.CheckRequest {
	r := migration.CheckRequest{Guest: src.Guest, Source: src.Source, Wanted: src.Wanted}
	if s.kind == migration.TypeLiveMigration {
		r.Options, r.PostCopyAsked = s.rec.Options, s.rec.OptionsFrom["post_copy"] == options.FromRequest
	}
	if src.Wanted != nil || s.evacuates() {
		r.Kind = s.kind
	}
	if s.evacuates() {
		r.Wanted = src.Guest.RebuiltFrom(s.change.Image)
	}
	return r
}

// together tells several refusals in one: the first one's kind, all reasons.
func together(doing, name string, errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s: %w", doing, errs[0])
	}
	var reasons []fault.Reason
	for _, err := range errs {
		if r := fault.ReasonsOf(err); len(r) > 0 {
			reasons = append(reasons, r...)
		} else {
			reasons = append(reasons, fault.Reason{Code: string(fault.KindOf(err)), Message: err.Error()})
		}
	}
	return fault.Refuse(fault.KindOf(errs[0]), doing, reasons...)
}

// movable refuses a guest that cannot be moved as it is, or that a resize would leave as
// it is.
func (s firstSteps) movable(src inspectedSource) error {
	switch s.kind {
	case migration.TypeLiveMigration:
		return movable(src.Guest)
	case migration.TypeResize:
		return changes(src)
	}
	return nil
}

// changes refuses a resize that leaves the guest as it is: it would be powered off for
// nothing.
func changes(src inspectedSource) error {
	g, w := src.Guest, src.Wanted
	if w == nil || len(w.Grow) > 0 || !sameFlavor(g.Flavor, w.Flavor) {
		return nil
	}
	return fault.Refuse(fault.Invalid, "", fault.Reason{
		Code: "same_flavor", Message: fmt.Sprintf("instance %s has flavor %s already", g.UUID, w.Flavor.Name),
		Have: g.Flavor.Name, Want: w.Flavor.Name, Change: "name another flavor; to move it as it is, migrate it cold",
	})
}

// sameFlavor compares all that a flavor says, and not its name alone: one that was edited
// is another.
func sameFlavor(a, b topology.Flavor) bool {
	return a.Name == b.Name && a.VCPUs == b.VCPUs && a.MemoryMB == b.MemoryMB && a.DiskGB == b.DiskGB && maps.Equal(a.ExtraSpecs, b.ExtraSpecs)
}

// movable refuses a guest that does not run. Nova moves active and paused ones.
func movable(g migration.Guest) error {
	if g.PowerState == migration.PowerRunning || g.PowerState == migration.PowerPaused {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code:    "guest_not_running",
		Message: fmt.Sprintf("instance %s is %s: only a running or paused guest can move live", g.UUID, g.PowerState),
		Want:    string(migration.PowerRunning), Have: string(g.PowerState), Change: "start it, or move it cold",
	})
}

// sameHost refuses a destination that is the source, also under another name.
func sameHost(source, destination migration.Description) error {
	if source.ProviderUUID != destination.ProviderUUID && (source.HostUUID != destination.HostUUID || source.HostUUID == "") {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code:    "same_host",
		Message: fmt.Sprintf("destination %s is the host that the guest is on", destination.Name),
		Have:    source.Name, Change: "name another host",
	})
}

func nowhere(instance string) error {
	return fault.Refuse(fault.DoesNotFit, "", fault.Reason{
		Code:    "no_candidate",
		Message: fmt.Sprintf("Placement knows no other host with room for instance %s", instance),
		Change:  "free capacity on another host, or add one; berth plan says what is in the way of each",
	})
}

// candidates are the names of hosts that Placement says have room, in the order in
// which they are tried: near ones, or far ones, as Config.NearWeight says, then those that
// share the guest's disks, then the emptiest by memory. What Placement proposes of each is not handed on: only the destination
// knows its CPUs, pages and devices one by one, so its claim decides where the guest
// is counted, also where Placement would have had another provider of the same host. One that
// has not refused is among them where there is one.
func (s firstSteps) candidates(ctx context.Context, src inspectedSource, refused []migration.Refusal) ([]string, error) {
	wish, err := wishOf(ctx, s.c.cfg.Placement, src, s.c.cfg.NearWeight())
	if err != nil {
		return nil, err
	}
	found, err := candidates.Find(ctx, s.c.cfg.Placement, wish, func(hosts []candidates.Host) bool {
		return untried(hostNames(hosts), s.from, refused) != ""
	})
	return hostNames(found.Hosts), err
}

// wishOf is what a guest asks of another host.
func wishOf(ctx context.Context, p candidates.Placement, src inspectedSource, near candidates.NearWeight) (candidates.Wish, error) {
	g := src.wanted()
	disk, err := candidates.Own(ctx, p, g.Allocations)
	if err != nil {
		return candidates.Wish{}, fmt.Errorf("ask Placement for the provider of the guest's disks: %w", err)
	}
	return candidates.Wish{
		Resources: g.Resources, Topology: g.Topology, Devices: g.PCIRequests, ExtraSpecs: g.Flavor.ExtraSpecs, Disk: disk,
		Counted: candidates.DeviceClasses(g.Allocations), Source: src.Source.ProviderUUID, Near: near,
	}, nil
}

func hostNames(hosts []candidates.Host) []string {
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return names
}

// untried is the first of names that is not the source and has not refused.
func (s firstSteps) untried(names []string) string { return untried(names, s.from, s.rec.Refusals) }

func untried(names []string, source string, refusals []migration.Refusal) string {
	for _, name := range names {
		if name != source && !slices.ContainsFunc(refusals, func(r migration.Refusal) bool { return r.DestCompute == name }) {
			return name
		}
	}
	return ""
}
