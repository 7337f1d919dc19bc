package conductor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
	"berth/migration/task"
)

// Request asks for a migration.
type Request struct {
	// Instance is the uuid of the guest.
	Instance string `json:"instance_uuid"`
	// Source is the provider's name of the host that has the guest; empty for the local
	// one. Another one only with ShareNothing. Of an evacuation it is the dead host, and empty
	// for the one that the fleet's records name.
	Source string `json:"source_compute,omitempty"`
	// ShareNothing asks for the story in which the two hosts need not reach each other: of a
	// cold move or a resize, which then never stays where it is.
	ShareNothing bool `json:"share_nothing,omitempty"`
	// Type is one of TypeLiveMigration, which empty means, TypeMigration, TypeResize,
	// TypeRebuild and TypeEvacuation.
	Type string `json:"migration_type,omitempty"`
	// Destination is a provider's name. Empty lets Placement's candidates decide; a
	// resize then stays where it is if it fits there, and a rebuild always does. A resize
	// to the host that has the guest is one in place, and to no other.
	Destination string `json:"dest_compute,omitempty"`
	// Alternates are providers' names, tried in order when the destination before refuses;
	// without a Destination the first of them is tried first. With neither, Placement's
	// candidates are.
	Alternates []string `json:"alternates,omitempty"`
	// Migration is the uuid the migration is to have; empty makes one. A request
	// repeated with the same uuid is answered with the migration it made; one that asks
	// for another move by it is refused.
	Migration string `json:"uuid,omitempty"`
	// Queue is the uuid of the queue that the move belongs to: a destination may have it wait
	// for its turn. Empty for a move by itself.
	Queue string `json:"queue,omitempty"`
	// Priority is its place among those that wait for their turn: from 1 to PriorityUrgent,
	// 0 for PriorityUser, or PriorityDrain of a queue's.
	Priority int `json:"priority,omitempty"`
	// By is who asks, in words for people; empty where nobody says.
	By string `json:"by,omitempty"`
	// Options are a live migration's, merged; of a cold one only the bandwidth counts.
	// OptionsFrom is who said each.
	Options     migration.Options       `json:"options"`
	OptionsFrom map[string]options.From `json:"options_from,omitempty"`
	// Change is a resize's flavor, or a rebuild's image and maybe flavor. Of an evacuation its
	// image alone: what disks are made from that no host shares, where the guest's record names
	// none.
	Change migration.Change `json:"change,omitzero"`
	// Of an evacuation. Stopped: the guest stays off, whatever it was. AcceptLoss: what was
	// written to a disk that is made anew is lost, and may be.
	Stopped    bool `json:"stopped,omitempty"`
	AcceptLoss bool `json:"accept_data_loss,omitempty"`
	// ConfirmWindow is after which time a cold move or a resize is confirmed by itself; 0
	// for never, nil for Config.ConfirmWindow.
	ConfirmWindow *time.Duration `json:"confirm_window,omitempty"`
	// ShutdownTimeout is how long a guest is given to shut itself down before its plug is
	// pulled; 0 pulls it at once, nil is what its flavor says (os_shutdown_timeout, in
	// seconds), or Config.ShutdownTimeout.
	ShutdownTimeout *time.Duration `json:"shutdown_timeout,omitempty"`
}

// doing is what is asked for, in the words of errors.
func (r Request) doing() string {
	verb := map[string]string{migration.TypeMigration: "migrate", migration.TypeResize: "resize", migration.TypeRebuild: "rebuild", migration.TypeEvacuation: "evacuate"}[r.Type]
	of := ""
	if r.Source != "" {
		of = " of " + r.Source
	}
	with := ""
	if r.ShareNothing {
		with = ", sharing nothing"
	}
	return fmt.Sprintf("%s instance %s%s%s", cmp.Or(verb, "live-migrate"), r.Instance, of, with)
}

// destinations are those asked for, in order.
func (r Request) destinations() []string {
	if r.Destination == "" {
		return r.Alternates
	}
	return append([]string{r.Destination}, r.Alternates...)
}

// priority is the move's place among those that wait; 0 of one that waits for no turn.
func (r Request) priority() int {
	switch {
	case r.Type != migration.TypeLiveMigration:
		return 0
	case r.Priority == 0 && r.Queue != "":
		return migration.PriorityDrain
	}
	return cmp.Or(r.Priority, migration.PriorityUser)
}

// MostAlternates bounds them. Arbitrary: each is asked for some time.
const MostAlternates = 64

// validate refuses what makes no sense by itself.
func (r Request) validate(local string) error {
	if bad := r.Options.Validate(); len(bad) > 0 {
		return fault.Refuse(fault.Invalid, "options of the live migration", bad...)
	}
	var reasons []fault.Reason
	bad := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	switch r.Type {
	case migration.TypeLiveMigration, migration.TypeMigration:
		if r.Change != (migration.Change{}) {
			bad("change", "a "+r.Type+" changes nothing of the guest", "ask for a resize or a rebuild")
		}
	case migration.TypeResize:
		if r.Change.Flavor == nil {
			bad("flavor", "a resize names no flavor", "name one")
		}
		if r.Change.Image != nil {
			bad("image", "a resize takes no image", "ask for a rebuild")
		}
	case migration.TypeRebuild:
		if r.Change.Image == nil {
			bad("image", "a rebuild names no image", "name one")
		}
		if r.Destination != "" && r.Destination != local {
			bad("dest_compute", "a rebuild stays on "+local, "name no host")
		}
		if len(r.Alternates) > 0 {
			bad("alternates", "a rebuild stays on "+local+", and has no alternates", "name none")
		}
	case migration.TypeEvacuation:
		if r.Change.Flavor != nil {
			bad("change", "an evacuation takes no flavor", "resize the guest once it lives")
		}
	default:
		bad("migration_type", "migration type "+r.Type+" is not known",
			"use one of "+migration.TypeLiveMigration+", "+migration.TypeMigration+", "+migration.TypeResize+", "+migration.TypeRebuild+", "+migration.TypeEvacuation)
	}
	if r.Type != migration.TypeEvacuation && (r.Stopped || r.AcceptLoss) {
		bad("evacuation", "stopped and accept_data_loss are of evacuations", "leave them out")
	}
	if r.Priority < 0 || r.Priority > migration.PriorityUrgent {
		bad("priority", fmt.Sprintf("priority %d is none", r.Priority), fmt.Sprintf("say a number from 1 to %d, or leave it out", migration.PriorityUrgent))
	}
	source := cmp.Or(r.Source, local)
	if r.ShareNothing && r.Type != migration.TypeMigration && r.Type != migration.TypeResize {
		bad("share_nothing", "a "+r.Type+" is not for hosts that share nothing", "move it cold, or resize it")
	}
	if source != local && !r.ShareNothing && r.Type != migration.TypeEvacuation {
		bad("source_compute", "the guest is on "+source+", whose own agent conducts its moves", "ask "+source+", or ask for a move between hosts that share nothing")
	}
	if r.ShareNothing && r.Destination == source {
		bad("dest_compute", source+" is the host that the guest is on", "name another host")
	}
	if r.Type == migration.TypeEvacuation {
		source = r.Source // by the records, where it is not named; the agent that is asked may be the destination
	}
	r.validateAlternates(source, bad)
	bounded := func(what string, d *time.Duration, most time.Duration) {
		switch {
		case d == nil:
		case *d < 0:
			bad("negative_duration", what+" "+d.String()+" is negative", "say 0 for none, or leave it out")
		case *d > most:
			bad("duration", what+" "+d.String()+" is longer than "+most.String(), "say less")
		}
	}
	bounded("confirm window", r.ConfirmWindow, longestWindow)
	bounded("shutdown timeout", r.ShutdownTimeout, migration.LongestShutdown)
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, r.doing(), reasons...)
	}
	return nil
}

func (r Request) validateAlternates(source string, bad func(code, message, change string)) {
	if len(r.Alternates) > MostAlternates {
		bad("alternates", fmt.Sprintf("%d alternates are more than %d", len(r.Alternates), MostAlternates), "name fewer")
	}
	if len(r.Alternates) > 0 && r.Destination == source && source != "" {
		bad("alternates", "a resize where the guest is has no alternates", "name none, or another destination")
	}
	for i, name := range r.Alternates {
		switch {
		case name == "":
			bad("alternates", "an alternate has no name", "name a host")
		case name == source:
			bad("alternates", "alternate "+name+" is the host that the guest is on", "name another host")
		case name == r.Destination || slices.Contains(r.Alternates[:i], name):
			bad("alternates", "host "+name+" is named twice", "name it once")
		}
	}
}

// LiveMigrate is Start of a live migration.
func (c *Conductor) LiveMigrate(ctx context.Context, r Request) (migration.Migration, error) {
	r.Type = migration.TypeLiveMigration
	return c.Start(ctx, r)
}

// Start accepts a migration durably and returns its record; the move goes on by itself. A
// request that cannot be is refused with every reason and leaves nothing, not even a
// record:
//
//	fault.NotFound     no such instance, or no such host
//	fault.Exists       the uuid asked for is another migration's, or somebody else's, or
//	                   of this guest's but of another type, flavor, image or destination
//	fault.Invalid      the request makes no sense
//	fault.Forbidden    stopped guest that is to move live, same host, not managed, a disk that
//	                   would shrink, hosts that cannot work together
//	fault.DoesNotFit   no room at the destination, or nowhere
//	fault.Busy         the instance has an unfinished migration, which the reason names
//	fault.Unavailable  peer, Placement or hypervisor does not answer, or Run does not run
func (c *Conductor) Start(ctx context.Context, r Request) (migration.Migration, error) {
	r.Type = cmp.Or(r.Type, migration.TypeLiveMigration)
	if err := r.validate(c.cfg.Local); err != nil {
		return migration.Migration{}, err
	}
	asked := false // for a uuid that another may have
	if r.Migration == "" {
		id, err := uuid.NewRandomFromReader(c.cfg.Random)
		if err != nil {
			return migration.Migration{}, fault.New(fault.Internal, "make a uuid: %w", err)
		}
		r.Migration = id.String()
	} else if m, known, err := c.Begun(r); known || err != nil {
		return m, err
	} else {
		asked = true
	}
	if err := c.free(r); err != nil {
		return migration.Migration{}, err
	}
	if asked {
		if err := c.unused(ctx, r.Migration, r.Instance); err != nil {
			return migration.Migration{}, fmt.Errorf("%s: %w", r.doing(), err)
		}
	}
	now := c.cfg.Runtime.Now()
	source := cmp.Or(r.Source, c.cfg.Local)
	conductor := ""
	if source != c.cfg.Local {
		conductor = c.cfg.Local
	}
	var lost migration.LostGuest
	var evacuation *migration.Evacuation
	if r.Type == migration.TypeEvacuation {
		var err error
		if lost, err = c.readLost(ctx, r); err != nil {
			return migration.Migration{}, fmt.Errorf("%s: %w", r.doing(), err)
		}
		source, conductor = lost.Source.Name, c.cfg.Local
		evacuation = &migration.Evacuation{Proof: &lost.Proof, Stopped: r.Stopped, AcceptLoss: r.AcceptLoss, Image: pathOf(r.Change.Image)}
	}
	s := newStory(c, stored{Named: r.Destination, Alternates: r.Alternates, Change: r.Change, Migration: migration.Migration{
		UUID: r.Migration, InstanceUUID: r.Instance, SourceCompute: source, Conductor: conductor, ShareNothing: r.ShareNothing, Queue: r.Queue, By: r.By,
		MigrationType: r.Type, Status: migration.StatusAccepted, Attempt: 1,
		CreatedAt: now, UpdatedAt: now, Options: r.Options, OptionsFrom: r.OptionsFrom, Priority: r.priority(), Phase: task.Doing, Steps: []migration.StepRecord{}, Evacuation: evacuation,
	}})
	check := s.firstSteps().precheck
	if r.Type == migration.TypeEvacuation {
		check = func(ctx context.Context, doing string) (migration.Guest, error) {
			return s.evacuationSteps().precheckLost(ctx, doing, lost)
		}
	}
	guest, err := check(ctx, r.doing())
	if err != nil {
		return migration.Migration{}, err
	}
	s.rec.InstanceName = guest.Name
	s.describe(r, guest)
	s.limit = c.attemptLimit(guest, s.rec.Options) + s.shutdown
	s.timeLimits().setDeadline(&s.rec)

	// The reservation stands before the write and is taken back if it fails.
	c.mu.Lock()
	run := c.run
	if run == nil || run.Err() != nil {
		c.mu.Unlock()
		return migration.Migration{}, notRunning(r)
	}
	if c.busy[r.Instance] != "" {
		defer c.mu.Unlock()
		return migration.Migration{}, c.busyLocked(r.Instance)
	}
	c.busy[r.Instance] = r.Migration
	c.mu.Unlock()
	if err := s.save(ctx); err != nil {
		// The write may have landed all the same: a record without effects, which
		// is taken back here or, if that fails too, driven and shown at the next start.
		_ = c.cfg.Store.Delete(context.WithoutCancel(ctx), bucketMigrations, r.Migration)
		c.mu.Lock()
		delete(c.busy, r.Instance)
		c.mu.Unlock()
		return migration.Migration{}, fmt.Errorf("accept the migration of instance %s: %w", r.Instance, err)
	}
	c.mu.Lock()
	c.stories[r.Migration] = s
	if s.queueSteps().takesTurns() {
		s.queueSteps().queueLocked("")
	}
	m := s.view()
	c.mu.Unlock()
	c.spawn("migration "+r.Migration, func() { s.drive(run) })
	return m, nil
}

// longestWindow is the longest wait for a confirmation that is not for ever. Arbitrary, as
// LongestShutdown is.
const longestWindow = 10 * 365 * 24 * time.Hour

// describe keeps what the request says of a cold move.
func (s *story) describe(r Request, g migration.Guest) {
	if r.Type == migration.TypeLiveMigration || r.Type == migration.TypeEvacuation {
		return
	}
	s.rec.OldFlavor, s.rec.NewFlavor = g.Flavor.Name, g.Flavor.Name
	if r.Change.Flavor != nil {
		s.rec.NewFlavor = r.Change.Flavor.Name
	}
	if r.Change.Image != nil {
		s.rec.NewImage = r.Change.Image.Path
	}
	if s.window = s.c.cfg.ConfirmWindow; r.ConfirmWindow != nil {
		s.window = *r.ConfirmWindow
	}
	switch flavor, ok := shutdownOf(g); {
	case r.ShutdownTimeout != nil:
		s.shutdown = *r.ShutdownTimeout
	case ok:
		s.shutdown = flavor
	default:
		s.shutdown = max(0, s.c.cfg.ShutdownTimeout)
	}
	// A flavor's and the configuration's are bounded here.
	s.window, s.shutdown = min(s.window, longestWindow), min(s.shutdown, migration.LongestShutdown)
}

// unused refuses a uuid for a new migration that is none, or somebody else's. It
// becomes a consumer in Placement, which the move's end or undo deletes: that of
// an instance would lose its allocation.
func (c *Conductor) unused(ctx context.Context, id, instance string) error {
	if !isUUID(id) {
		return fault.New(fault.Invalid, "migration %q: want a uuid in its usual form", id)
	}
	if id == instance {
		return fault.New(fault.Exists, "migration %s is the instance's own uuid", id)
	}
	if m, err := c.Get(ctx, id); err == nil {
		return fault.New(fault.Exists, "migration %s is one of instance %s", id, m.InstanceUUID)
	}
	held, err := c.cfg.Placement.Allocations(ctx, id)
	if err == nil && held.Exists() {
		err = fault.New(fault.Exists, "%s is a consumer in Placement already: %v", id, held.Allocations)
	}
	return err
}

// free refuses while an instance has an unfinished migration.
func (c *Conductor) free(r Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil {
		return notRunning(r)
	}
	if c.busy[r.Instance] != "" {
		return c.busyLocked(r.Instance)
	}
	return nil
}

func notRunning(r Request) error {
	return fault.New(fault.Unavailable, "%s: the conductor does not run", r.doing())
}

// busyLocked names the unfinished migration of an instance.
func (c *Conductor) busyLocked(instance string) error {
	id := c.busy[instance]
	why := fault.Reason{
		Code:    "migration_unfinished",
		Message: fmt.Sprintf("instance %s has the unfinished migration %s", instance, id),
		Have:    id, Change: "wait for it, or abort it",
	}
	if s := c.stories[id]; s != nil && s.resting {
		why.Message = fmt.Sprintf("instance %s has migration %s, which is finished and neither confirmed nor reverted", instance, id)
		why.Change = "berth resize confirm " + cmp.Or(s.rec.InstanceName, instance) + ", or berth resize revert " + cmp.Or(s.rec.InstanceName, instance)
	}
	return fault.Refuse(fault.Busy, "", why)
}
