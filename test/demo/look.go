package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"berth/agent/api"
	"berth/placementclient"
	"berth/test/guest"
	"berth/test/lab"
)

// show runs an operator's command in a host. What it prints is shown in the long form, and where it fails.
func (d *demo) show(ctx context.Context, host string, args ...string) error {
	d.out.command(host, strings.Join(args, " "))
	code, err := d.command(ctx, host, args...)
	if err == nil && code != 0 {
		d.out.block(d.said)
		err = fmt.Errorf("berth %s on %s: exit code %d", strings.Join(args, " "), host, code)
	}
	return err
}

// tell is show with what it prints, in the short form too.
func (d *demo) tell(ctx context.Context, host string, args ...string) error {
	err := d.show(ctx, host, args...)
	if err == nil && !d.out.verbose {
		d.out.block(d.said)
	}
	return err
}

// look is show of what the short form does not need.
func (d *demo) look(ctx context.Context, host string, args ...string) error {
	if !d.out.verbose {
		return nil
	}
	return d.show(ctx, host, args...)
}

// showCode runs a command that may fail, and gives its exit code.
func (d *demo) showCode(ctx context.Context, host string, args ...string) (int, error) {
	d.out.command(host, strings.Join(args, " "))
	return d.command(ctx, host, args...)
}

// command runs one; d.said is what it printed, where that was not shown.
func (d *demo) command(ctx context.Context, host string, args ...string) (int, error) {
	h, err := d.f.Host(host)
	if err != nil {
		return 0, err
	}
	cmd, err := h.Command(ctx, append([]string{d.f.Binary}, args...)...)
	if err != nil {
		return 0, err
	}
	var quiet bytes.Buffer
	var w io.Writer = &quiet
	if d.out.verbose {
		w = d.out.indented()
	}
	cmd.Stdout, cmd.Stderr = w, w
	if d.out.color && d.out.verbose {
		// The command sees a pipe: tell it that a live line is welcome.
		cmd.Env = append(cmd.Environ(), "BERTH_PROGRESS=live")
	}
	if d.out.wide > 0 { // what it draws stands indented
		cmd.Env = append(cmd.Environ(), fmt.Sprintf("COLUMNS=%d", max(60, d.out.wide-len(under))))
	}
	err = h.Run(cmd)
	d.said = quiet.String()
	if d.out.verbose {
		d.out.printf("\n")
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// afterProgress cuts the lines that say how far a move is.
func afterProgress(said string) string {
	progress := strings.LastIndex(said, " -> ")
	if progress < 0 {
		return said
	}
	_, rest, _ := strings.Cut(said[progress:], "\n")
	return rest
}

// console shows the guest's last words on one host.
func (d *demo) console(host string, n int) error {
	if !d.out.verbose {
		return nil
	}
	h, err := d.f.Host(host)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(h.Console(d.guest))
	if err != nil {
		return err
	}
	var lines []string
	for line := range bytes.Lines(text) {
		if s := strings.TrimSpace(string(line)); s != "" {
			lines = append(lines, s)
		}
	}
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	for _, line := range lines {
		d.out.say("  %s console | %s", host, line)
	}
	return nil
}

// proof reads both consoles, after the guest has written and checked all of its
// memory once more.
func (d *demo) proof(ctx context.Context) (guest.Proof, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, err := d.f.Host("host-a")
	if err != nil {
		return guest.Proof{}, err
	}
	b, err := d.f.Host("host-b")
	if err != nil {
		return guest.Proof{}, err
	}
	source, err := guest.ReadConsole(a.Console(d.guest))
	if err != nil {
		return guest.Proof{}, err
	}
	before, err := guest.WaitBeat(ctx, b.Console(d.guest), 1)
	if err != nil {
		return guest.Proof{}, err
	}
	passes := before[len(before)-1].Passes
	for n := len(before) + 1; ; n++ {
		beats, err := guest.WaitBeat(ctx, b.Console(d.guest), n)
		if err != nil {
			return guest.Proof{}, fmt.Errorf("wait until the guest has checked its memory once more: %w", err)
		}
		if beats[len(beats)-1].Passes >= passes+2 {
			return guest.Continuity(source, beats)
		}
	}
}

// allocations shows who holds what, on which host, as Placement says.
func (d *demo) allocations(ctx context.Context, host, remark string) error {
	if !d.out.verbose {
		return nil
	}
	if remark != "" {
		d.out.say("%s", remark)
	}
	text, err := d.allocationTable(ctx, host)
	if err != nil {
		return err
	}
	d.out.block(text)
	return nil
}

func (d *demo) instance(ctx context.Context, host string) (api.InstanceDetail, error) {
	var in api.InstanceDetail
	err := d.f.JSON(ctx, host, &in, "instance", "show", d.guest)
	return in, err
}

func (d *demo) allocationTable(ctx context.Context, host string) (string, error) {
	in, err := d.instance(ctx, host)
	if err != nil {
		return "", err
	}
	return table(in.Allocations), nil
}

func table(rows []api.Allocation) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CONSUMER\tUUID\tON\tHOLDS")
	for _, a := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", a.ConsumerType, a.Consumer, a.Provider, holds(a.Resources))
	}
	w.Flush()
	return b.String()
}

func holds(r placementclient.Resources) string {
	var out []string
	for _, class := range slices.Sorted(maps.Keys(r)) {
		out = append(out, fmt.Sprintf("%s %d", class, r[class]))
	}
	return strings.Join(out, ", ")
}

// lookDuring waits until the move holds both halves and the memory is on its
// way, and keeps what Placement says then.
func (d *demo) lookDuring(ctx context.Context, shown chan<- string) error {
	for ctx.Err() == nil {
		in, err := d.instance(ctx, "host-a")
		if err == nil && len(in.Allocations) == 2 {
			shown <- table(in.Allocations)
			return nil
		}
		sleep(ctx, 200*time.Millisecond)
	}
	return nil // the move is over; move says what is missing
}

// cutWhenRunning cuts a host's migration link once memory flows.
func (d *demo) cutWhenRunning(ctx context.Context, h *lab.Host) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		var l api.MigrationList
		if err := d.f.JSON(ctx, h.Name, &l, "migration", "list"); err == nil {
			for _, m := range l.Migrations {
				if !m.Done() && m.Progress.MemoryProcessed > 8<<20 {
					if err := h.Cut(ctx, lab.Mig); err != nil {
						return err
					}
					d.out.printf("\n")
					d.out.say("%s", d.out.style("31", "*** the cable of the migration network is pulled out of host-b ***"))
					return nil
				}
			}
		}
		sleep(ctx, 200*time.Millisecond)
	}
	return fmt.Errorf("wait for memory to flow: %w", context.Cause(ctx))
}

// nothingLeft looks on host-a for what a move that was undone must not leave:
// a domain, a disk.
func (d *demo) nothingLeft(ctx context.Context) error {
	h, err := d.f.Host("host-a")
	if err != nil {
		return err
	}
	domains, err := h.Virsh(ctx, "list", "--all", "--name")
	if err != nil {
		return err
	}
	disks, err := filepath.Glob(h.Path("/var/lib/libvirt/images") + "/*")
	if err != nil {
		return err
	}
	if domains != "" || len(disks) > 0 {
		return fmt.Errorf("host-a still has domains %q and disks %q", domains, disks)
	}
	d.out.good("host-a: no claim, no domain, no disk left")
	return nil
}

func sleep(ctx context.Context, t time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(t):
	}
}

// logs shows the end of each daemon's log after a failure.
func (d *demo) logs() {
	files, _ := filepath.Glob(filepath.Join(d.f.Dir, "*.log"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if len(text) > 3000 {
			text = text[len(text)-3000:]
		}
		fmt.Fprintf(os.Stderr, "\n--- the end of %s\n", filepath.Base(f))
		_, _ = io.Copy(os.Stderr, bytes.NewReader(text)) // a broken stderr cannot be told
	}
}

func (d *demo) tryThis() {
	labcmd := "go run ./test/lab/cmd/lab -dir " + d.dir
	d.out.act("It stays up. What to try")
	for _, line := range []string{
		labcmd + " exec host-b " + d.f.Binary + " status",
		labcmd + " exec host-b " + d.f.Binary + " migrate sailor host-a",
		labcmd + " exec host-a " + d.f.Binary + " migration list",
		labcmd + " exec host-a " + d.f.Binary + " claim list",
		labcmd + " exec host-a virsh list --all",
		labcmd + " cut host-a mig      # and heal host-a mig",
	} {
		d.out.say("%s", line)
	}
	d.out.say("end it with:")
	d.out.say("%s down", labcmd)
}
