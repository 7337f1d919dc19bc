package main

import (
	"context"
	"fmt"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/stream"
	"berth/test/guest"
)

// killed ends the source's agent with kill -9 while memory flows, shows that the
// stream and QEMU go on without it, and lets a new agent finish the move.
func (d *demo) killed(ctx context.Context) error {
	d.out.act("The move back once more, and kill -9 of its agent half-way")
	from, err := d.f.Host("host-b")
	if err != nil {
		return err
	}
	to, err := d.f.Host("host-a")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	d.out.say("memory and disk go through a process of the move's own on each host, with one encrypted connection")
	d.out.say("between them; the bandwidth is bounded, so that there is time to look")
	if err := d.show(ctx, "host-b", "migrate", d.guest, "host-a", "--bandwidth", "12MiB/s", "--detach"); err != nil {
		return err
	}
	m, err := d.awaitMove(ctx, func(m migration.Migration) bool { return m.Progress.MemoryProcessed > 8<<20 })
	if err != nil {
		return err
	}
	if m.Done() {
		return fmt.Errorf("the move is %s already: its agent was to be killed in its middle", m.Status)
	}
	d.f.Agent("host-b").Kill()
	d.out.printf("\n")
	d.out.say("%s", d.out.style("31", "*** kill -9: host-b has no agent any more ***"))
	before, err := d.sent(ctx, true)
	if err != nil {
		return err
	}
	beats, err := guest.ReadConsole(from.Console(d.guest))
	if err != nil {
		return err
	}
	if beats, err = guest.WaitBeat(ctx, from.Console(d.guest), len(beats)+3); err != nil {
		return err
	}
	after, err := d.sent(ctx, false)
	if err != nil {
		return err
	}
	if after <= before {
		return fmt.Errorf("the stream had sent %d bytes when its agent was killed, and %d later", before, after)
	}
	d.out.good("without an agent: %d MiB sent, then %d MiB; and the guest still beats on host-b, %d so far",
		before>>20, after>>20, beats[len(beats)-1].N)
	begun := time.Now()
	if err := d.f.StartAgent(ctx, "host-b"); err != nil {
		return err
	}
	if err := d.f.WaitReady(ctx, "host-b"); err != nil {
		return err
	}
	m, err = d.awaitMove(ctx, func(migration.Migration) bool { return true })
	if err != nil {
		return err
	}
	d.out.say("a new agent, ready after %.1f s, found the job and its stream: the move is %s", time.Since(begun).Seconds(), m.Status)
	d.out.detail("enough seen: libvirt may send the rest as fast as it goes")
	_, _ = from.Virsh(ctx, "migrate-setspeed", d.guest, "1000") // a move that is over already needs none
	if m, err = d.awaitMove(ctx, migration.Migration.Done); err != nil {
		return err
	}
	if m.Outcome != migration.OutcomeCompleted {
		return fmt.Errorf("the move is %s: %s", m.Status, m.Outcome)
	}
	if err := d.look(ctx, "host-b", "migration", "show", m.UUID); err != nil {
		return err
	}
	// It has been here before: what it said then stands first.
	arrived, err := guest.ReadConsole(to.Console(d.guest))
	if err != nil {
		return err
	}
	if arrived, err = guest.WaitBeat(ctx, to.Console(d.guest), len(arrived)+3); err != nil {
		return err
	}
	last := arrived[len(arrived)-1]
	if last.Boot != beats[0].Boot || last.Bad+last.DiskBad > 0 {
		return fmt.Errorf("on host-a the guest says %+v, on host-b it was boot %s", last, beats[0].Boot)
	}
	d.out.good("adopted and finished: the same boot goes on at beat %d on host-a, no page and no disk block wrong", last.N)
	return d.allocations(ctx, "host-a", "")
}

// awaitMove waits until the newest move that host-b conducts is over, or as wanted.
func (d *demo) awaitMove(ctx context.Context, wanted func(migration.Migration) bool) (migration.Migration, error) {
	for {
		var l api.MigrationList
		if err := d.f.JSON(ctx, "host-b", &l, "migration", "list"); err == nil {
			var newest migration.Migration
			for _, m := range l.Migrations {
				if m.CreatedAt.After(newest.CreatedAt) {
					newest = m
				}
			}
			if newest.UUID != "" && (newest.Done() || wanted(newest)) {
				return newest, nil
			}
		}
		if ctx.Err() != nil {
			return migration.Migration{}, fmt.Errorf("wait for the move: %w", context.Cause(ctx))
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// sent asks the stream's own process on host-b how much it has sent; the command
// needs no agent.
func (d *demo) sent(ctx context.Context, show bool) (uint64, error) {
	if show {
		if err := d.look(ctx, "host-b", "stream", "list"); err != nil {
			return 0, err
		}
	}
	var l struct {
		Streams []stream.Status `json:"streams"`
	}
	if err := d.f.JSON(ctx, "host-b", &l, "stream", "list"); err != nil {
		return 0, err
	}
	if len(l.Streams) != 1 {
		return 0, fmt.Errorf("host-b has %d streams, want one", len(l.Streams))
	}
	return l.Streams[0].Of(stream.Memory).Sent, nil
}
