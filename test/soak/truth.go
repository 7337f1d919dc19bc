package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/migration"
	"berth/test/guest"
	"berth/test/lab"
)

// truth requires that, now or soon, all is as if nothing had happened, save for
// where the guest is.
func (r *round) truth(ctx context.Context, m migration.Migration) error {
	for _, h := range r.Hosts {
		if err := r.agentUp(ctx, h); err != nil {
			return err
		}
	}
	looks := []func(context.Context) []string{r.ledgers, r.domains, r.audits, r.leftovers}
	if r.power != "" {
		// First as its user had it; files are compared with those of a guest that runs.
		if err := calm(ctx, looks[:3]); err != nil {
			return fmt.Errorf("of a guest that is %s: %w", r.power, err)
		}
		if err := r.wake(ctx); err != nil {
			return err
		}
	}
	if err := calm(ctx, looks); err != nil {
		return err
	}
	r.calm = time.Now()
	if err := r.lived(ctx, m); err != nil {
		return err
	}
	return r.whole()
}

// calm waits until no look complains. What is cheap to ask comes first, and the rest is
// asked when that is well.
func calm(ctx context.Context, looks []func(context.Context) []string) error {
	err := await(ctx, truthMost, 50*time.Millisecond, func() error {
		for _, look := range looks {
			if wrong := look(ctx); len(wrong) > 0 {
				return errors.New(strings.Join(wrong, "\n"))
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("not as it should be: %w", err)
	}
	return nil
}

// ledgers asks each agent for its status, claims and guests.
func (b *bed) ledgers(ctx context.Context) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, h := range b.Hosts {
		c := b.clients[h]
		st, err := c.Status(ctx)
		if err != nil {
			say("status of %s: %v", h.Name, err)
			continue
		}
		if st.Health != api.HealthOK || len(st.Migrations) > 0 {
			say("%s is %s, with migrations %v: %s", h.Name, st.Health, st.Migrations, conditions(st))
		}
		claims, err := c.Claims(ctx)
		var have, want []string
		for _, cl := range claims.Claims {
			have = append(have, fmt.Sprintf("%s %s %s forced=%v context=%v", cl.Name, cl.Kind, cl.State, cl.Forced, cl.Context != nil))
		}
		if h == b.home {
			want = []string{b.name + " instance bound forced=false context=false"}
		}
		if err != nil || !slices.Equal(have, want) {
			say("claims of %s: %q, want %q: %v", h.Name, have, want, err)
		}
		list, err := c.Instances(ctx)
		have, want = nil, nil
		for _, in := range list.Instances {
			have = append(have, fmt.Sprintf("%s %s managed=%v migration=%s", in.Name, in.State, in.Managed, in.Migration))
		}
		if h == b.home {
			want = []string{b.name + " " + string(b.state()) + " managed=true migration="}
		}
		if err != nil || list.Error != "" || !slices.Equal(have, want) {
			say("guests of %s: %q, want %q: %v %s", h.Name, have, want, err, list.Error)
		}
		info, err := c.Host(ctx)
		if err != nil || info.ProvidersError != "" || len(info.Providers) == 0 {
			say("providers of %s: %v %s", h.Name, err, info.ProvidersError)
		}
		used, f := 0, flavors[b.flavor]
		for _, p := range info.Providers {
			for _, n := range p.Usages {
				used += int(n)
			}
		}
		whole := 0
		if h == b.home {
			whole = f.cpus + f.memory + f.disk
		}
		if used != whole {
			say("Placement counts %d units of %s, want the %d of flavor %s", used, h.Name, whole, b.flavor)
		}
	}
	d, err := b.clients[b.home].Instance(ctx, b.name)
	var have []string
	for _, a := range d.Allocations {
		have = append(have, a.ConsumerType+" on "+a.Provider)
	}
	if want := []string{"INSTANCE on " + b.home.Name}; err != nil || d.AllocationsError != "" || !slices.Equal(have, want) {
		say("allocations of %s: %q, want %q: %v %s", b.name, have, want, err, d.AllocationsError)
	}
	if err == nil && d.Flavor.Name != b.flavor {
		say("%s is of flavor %s, want %s", b.name, d.Flavor.Name, b.flavor)
	}
	return wrong
}

func conditions(st api.Status) string {
	var out []string
	for _, c := range st.Conditions {
		if c.Health != api.HealthOK {
			out = append(out, fmt.Sprintf("%s: %s %v", c.Name, c.Detail, c.Reasons))
		}
	}
	return strings.Join(out, "; ")
}

// domains asks each libvirtd, past everything of ours.
func (b *bed) domains(ctx context.Context) (wrong []string) {
	for _, h := range b.Hosts {
		want := ""
		if h == b.home {
			want = b.name + " " + string(b.state())
		}
		// "ID NAME STATE"
		out, err := h.Virsh(ctx, "list", "--all")
		f := strings.Fields(out)
		if len(f) > 0 {
			f = f[1:]
		}
		if have := strings.Join(f, " "); err != nil || have != want {
			wrong = append(wrong, fmt.Sprintf("domains of %s: %q, want %q: %v", h.Name, have, want, err))
		}
	}
	return wrong
}

// audits requires that ledger, libvirt and Placement agree on every host.
func (b *bed) audits(ctx context.Context) (wrong []string) {
	report, err := b.clients[b.home].Audit(ctx, api.AuditRequest{All: true})
	if err != nil || len(report.Silent) > 0 || len(report.Hosts) != len(b.Hosts) {
		return []string{fmt.Sprintf("the audit of %d hosts: silent %v: %v", len(report.Hosts), report.Silent, err)}
	}
	for _, h := range report.Hosts {
		for verdict, n := range h.Verdicts {
			if verdict != audit.Agree && n > 0 {
				wrong = append(wrong, fmt.Sprintf("the audit of %s: %d × %s", h.Host, n, verdict))
			}
		}
		for _, row := range h.Left() {
			wrong = append(wrong, fmt.Sprintf("the audit of %s: %+v", h.Host, row))
		}
		if len(h.Silent) > 0 || h.Refused != "" {
			wrong = append(wrong, fmt.Sprintf("the audit of %s: silent %v, %s", h.Host, h.Silent, h.Refused))
		}
	}
	return wrong
}

// baseline is what files and processes a host has with the guest on it, and without,
// and the host on which it never is.
type baseline struct{ home, away, third []string }

// of is that of one host.
func (p *baseline) of(b *bed, h *lab.Host) *[]string {
	switch h {
	case b.home:
		return &p.home
	case b.third():
		return &p.third
	}
	return &p.away
}

// leftovers holds files and processes against those of a fleet to which nothing
// has happened.
func (b *bed) leftovers(context.Context) (wrong []string) {
	wrong = b.strayDisks()
	for _, h := range b.Hosts {
		want := *b.plain.of(b, h)
		if _, err := os.Stat(h.Path(b.diskPath())); b.storage == Copied && (err == nil) != (h == b.home) {
			wrong = append(wrong, fmt.Sprintf("the guest's disk on %s: %v", h.Name, err))
		}
		have, err := b.things(h)
		if err != nil {
			wrong = append(wrong, err.Error())
		} else if d := cmp.Diff(want, have); d != "" {
			wrong = append(wrong, fmt.Sprintf("files and processes of %s (-want +got):\n%s", h.Name, d))
		}
	}
	return wrong
}

// libvirt's directories of a running guest bear the guest's number, which its file of
// what runs names.
var (
	numbered = regexp.MustCompile(`/domain-(\d+)-`)
	number   = regexp.MustCompile(`<domain [^>]*\bid='(\d+)'`)
)

// numbers are those of the guests that libvirt knows to run on a host.
func numbers(h *lab.Host) (out []string, err error) {
	files, err := filepath.Glob(h.Path("/run/libvirt/qemu/*.xml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m := number.FindSubmatch(data); m != nil {
			out = append(out, string(m[1]))
		}
	}
	return out, nil
}

// things are a host's files that come and go with guests and moves, the disk left
// out, and its processes.
func (b *bed) things(h *lab.Host) ([]string, error) {
	var out []string
	run, err := numbers(h)
	if err != nil {
		return nil, fmt.Errorf("look at the guests of %s: %w", h.Name, err)
	}
	for _, dir := range []string{"/run/berth", "/var/lib/berth", images, "/run/libvirt/qemu", "/var/lib/libvirt/qemu", "/etc/libvirt/qemu"} {
		err := filepath.WalkDir(h.Path(dir), func(path string, d os.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			inside := dir + strings.TrimPrefix(path, h.Path(dir))
			// The disk has a rule of its own. A libvirtd that is killed while it starts a
			// guest leaves the guest's directories for ever, and while it writes what it
			// knows of one, the half of that.
			m := numbered.FindStringSubmatch(inside)
			if inside == b.diskPath() || strings.HasSuffix(inside, ".xml.new") || m != nil && !slices.Contains(run, m[1]) {
				return nil
			}
			inside = numbered.ReplaceAllString(inside, "/domain-N-")
			inside = strings.ReplaceAll(inside, b.name, "GUEST")
			out = append(out, strings.ReplaceAll(inside, b.id, "UUID"))
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look at %s on %s: %w", dir, h.Name, err)
		}
	}
	list, err := processes(h)
	if err != nil {
		return nil, fmt.Errorf("look at the processes of %s: %w", h.Name, err)
	}
	for _, p := range list {
		out = append(out, "process "+p.name())
	}
	slices.Sort(out)
	return out, nil
}

// noted requires the note by which libvirt's hook knows the guest after a boot where the guest
// is, and nowhere else: it follows within two seconds.
func (b *bed) noted() error {
	for _, h := range b.Hosts {
		_, err := os.Stat(h.Path("/var/lib/berth/guests/" + b.id))
		if there := err == nil; there != (h == b.home) {
			return fmt.Errorf("the note of the guest on %s: there %v, want %v", h.Name, there, h == b.home)
		}
	}
	return nil
}

// settleDown remembers what is there when nothing is wrong.
func (b *bed) settleDown() error {
	for _, h := range b.Hosts {
		list, err := b.things(h)
		if err != nil {
			return err
		}
		*b.plain.of(b, h) = list
	}
	return nil
}

// lived proves by the guest's own words that it went through the round without a
// gap, or stayed, that no copy ran anywhere else, and that it has since gone
// through all its memory.
func (r *round) lived(ctx context.Context, m migration.Migration) error {
	if r.plan.Story.cold() {
		return r.livedCold(ctx, m)
	}
	var here []guest.Beat
	passes := uint64(0)
	err := await(ctx, truthMost, 20*time.Millisecond, func() (err error) {
		if here, err = guest.ReadConsole(r.home.Console(r.name)); err != nil {
			return err
		}
		if len(here) == 0 {
			return fmt.Errorf("the guest says nothing on %s", r.home.Name)
		}
		last := here[len(here)-1]
		if passes == 0 {
			passes = last.Passes + 2
		}
		if last.Passes < passes {
			return fmt.Errorf("the guest on %s hangs: its last word is %+v", r.home.Name, last)
		}
		return nil
	})
	if err != nil {
		return err
	}
	since := func(beats []guest.Beat) []guest.Beat {
		i := slices.IndexFunc(beats, func(b guest.Beat) bool { return b == r.begin })
		return beats[max(i, 0):]
	}
	if r.home == r.to {
		before, err := guest.ReadConsole(r.from.Console(r.name))
		if err != nil {
			return err
		}
		_, err = guest.Continuity(since(before), here)
		return err
	}
	if st, err := os.Stat(r.to.Console(r.name)); err == nil && st.Size() > 0 {
		text, _ := os.ReadFile(r.to.Console(r.name))
		return fmt.Errorf("a copy ran on %s, where the guest is not: it said %q", r.to.Name, text[:min(len(text), 500)])
	}
	if mine := since(here); mine[0] == r.begin {
		_, err = guest.Healthy(mine)
		return err
	}
	return fmt.Errorf("the console of %s has lost heartbeat %d", r.home.Name, r.begin.N)
}

// whole reads the guest's disk past everything, and requires all that the guest
// has written.
func (r *round) whole() error {
	beats, err := guest.ReadConsole(r.home.Console(r.name))
	if err != nil {
		return err
	}
	f, err := os.Open(r.disk(r.home))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := guest.CheckDisk(f, diskSize, beats[len(beats)-1]); err != nil {
		return fmt.Errorf("the disk on %s: %w", r.home.Name, err)
	}
	return nil
}
