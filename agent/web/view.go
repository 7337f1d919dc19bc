package web

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"berth/agent/api"
	"berth/agent/drawing"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
	"berth/topology"
)

// Snapshot is what there is to show of one moment.
type Snapshot struct {
	At     time.Time
	Status api.Status
	Host   drawing.Host
	// Guests are those of GuestsAt, GuestsError why it could not be asked how they are: then
	// they are the ledger's alone. A zero GuestsAt is before the first answer.
	Guests      []api.Instance
	GuestsAt    time.Time
	GuestsError string
	Migrations  []migration.Migration // newest first
	MovesError  string                // why they are not known; empty where they are
}

// mostHistory is how many moves that are over are shown. Arbitrary: berth migration list has
// them all.
const mostHistory = 50

// view is the same in the page's words.
type view struct {
	Title   string // of the browser's tab
	Name    string
	At      time.Time
	Mode    string
	Observe bool
	Version string

	Well     bool
	Headline string // "All is well", "2 of 9 are not well"
	Wrong    []api.Condition
	Fine     []api.Condition
	Disabled *api.Disabled

	Meters  []meter
	Drawing template.HTML
	Known   bool // there is something to draw

	Guests      []guest
	GuestsError string
	Asked       bool // it was asked how they are

	Moves      []move // on their way
	MovesError string
	History    []move
	Older      int // that are not shown
}

// meter is how much of an amount is held.
type meter struct {
	Name             string
	Used, Free, Most int64 // of one unit; Free is what a claim could still get
	Words            string
}

// guest is a row of guests.
type guest struct {
	Name, UUID, State string
	Letter, Colour    string // that the drawing has for it; empty for one that holds nothing
	Good              bool   // it runs, and by a claim
	Size              string
	Holds             []string
	Notes             []string
}

// move is a migration.
type move struct {
	UUID, Guest, What, From, To, Status, By string
	Begun, Ended                            time.Time
	Took                                    time.Duration
	Result                                  string // of one that is over: the outcome
	Tone                                    string // good, bad or plain
	Steps                                   []step
	Transfer                                *transfer // nil while no bytes go
	Waits, Reasons                          []fault.Reason
	Error                                   string
}

// step is a part of a move, and how far it is: done, now, undone, ahead or failed.
type step struct{ Name, State, Words string }

// transfer is how far the bytes are.
type transfer struct {
	Phase          string
	Done, Total    uint64
	Percent        int
	Rate, Dirty    uint64
	Left, Downtime time.Duration
	Iteration      uint64
	Throttle       int
	Never          bool
	Next           string
}

func viewOf(s Snapshot) view {
	v := view{
		Name: s.Status.Name, At: s.At, Mode: s.Status.Mode, Observe: s.Status.Mode == "observe", Version: s.Status.Version,
		Disabled: s.Status.Disabled, GuestsError: s.GuestsError, Asked: !s.GuestsAt.IsZero(), MovesError: s.MovesError,
		Well: s.Status.Health == api.HealthOK && s.Status.Ready, Known: s.Host.Known || len(s.Host.Guests) > 0,
	}
	for _, c := range s.Status.Conditions {
		if c.Health == api.HealthOK {
			v.Fine = append(v.Fine, c)
			continue
		}
		if slices.ContainsFunc(c.Reasons, func(r fault.Reason) bool { return strings.Contains(r.Message, c.Detail) }) {
			c.Detail = "" // the reason says it, and what to do
		}
		v.Wrong = append(v.Wrong, c)
	}
	switch n := len(v.Wrong); {
	case !s.Status.Ready:
		v.Headline = "The agent is starting"
	case v.Well:
		v.Headline = "All is well"
	case n == 1:
		v.Headline = "One thing is not well"
	default:
		v.Headline = fmt.Sprintf("%d things are not well", n)
	}
	v.Title = v.Name + ": " + strings.ToLower(v.Headline[:1]) + v.Headline[1:]
	v.Meters = meters(s.Status.Usage)
	var svg strings.Builder
	if err := s.Host.Inline(&svg); err == nil { // a builder takes everything
		v.Drawing = template.HTML(svg.String()) // drawing has escaped what it was given
	}
	for _, g := range s.Guests {
		v.Guests = append(v.Guests, guestOf(g, s.Host, v.Asked && s.GuestsError == ""))
	}
	for _, m := range s.Migrations {
		switch {
		case !m.Done():
			v.Moves = append(v.Moves, moveOf(m))
		case len(v.History) < mostHistory:
			v.History = append(v.History, moveOf(m))
		default:
			v.Older++
		}
	}
	return v
}

// meters are amounts that a claim could be given; those that the host does not have are left
// out.
func meters(u api.Usage) []meter {
	var out []meter
	add := func(name string, used, free, total int64, words func(int64) string) {
		if total == 0 && used == 0 {
			return
		}
		out = append(out, meter{
			Name: name, Used: used, Free: free, Most: max(used+free, 1),
			Words: fmt.Sprintf("%s held, %s free", words(used), words(free)),
		})
	}
	count := func(n int64) string { return fmt.Sprint(n) }
	mib := func(n int64) string { return amount(uint64(max(0, n)) << 20) }
	gib := func(n int64) string { return amount(uint64(max(0, n)) << 30) }
	add("Shared vCPUs", int64(u.Used.VCPUs), int64(u.Free.VCPUs), int64(u.Total.VCPUs), count)
	add("Dedicated CPUs", int64(u.Used.PCPUs), int64(u.Free.PCPUs), int64(u.Total.PCPUs), count)
	add("Memory", u.Used.MemoryMB, u.Free.MemoryMB, u.Total.MemoryMB, mib)
	add("Disk", u.Used.DiskGB, u.Free.DiskGB, u.Total.DiskGB, gib)
	return out
}

// colours is how many the drawing's style has for guests, g0 and on.
const colours = 8

// guestOf is a guest's row; known says that its state is.
func guestOf(in api.Instance, host drawing.Host, known bool) guest {
	g := guest{Name: in.Name, UUID: in.UUID, State: cmp.Or(in.State, "no domain")}
	if in.Status != "" {
		g.State = in.Status
	}
	if !known {
		g.State = "not known"
	}
	g.Good = known && in.Managed && in.State == "running"
	if in.Claim != nil {
		g.Size = sizeOf(in.Claim.Resources)
		if in.Claim.Forced {
			g.Notes = append(g.Notes, "does not fit: it was found so")
		}
		if in.Claim.ByHand {
			g.Notes = append(g.Notes, "changed past Berth")
		}
	}
	if i := slices.IndexFunc(host.Guests, func(d drawing.Guest) bool { return d.Instance == in.UUID }); i >= 0 {
		d := host.Guests[i]
		g.Letter, g.Colour, g.Holds = d.Mark, fmt.Sprintf("g%d", i%colours), d.Holds()
		if d.Floats {
			g.Holds = append([]string{"any of the shared CPUs, memory of any cell"}, g.Holds...)
		}
	}
	switch {
	case !in.Managed:
		g.Notes = append(g.Notes, "runs without a claim, and is counted all the same")
	case in.Migration != "":
		g.Notes = append(g.Notes, "is on a move")
	}
	if in.Resize != nil {
		g.Notes = append(g.Notes, "waits to be confirmed or reverted")
	}
	return g
}

func sizeOf(r topology.Resources) string {
	var out []string
	if r.PCPUs > 0 {
		out = append(out, fmt.Sprintf("%d dedicated CPUs", r.PCPUs))
	}
	if r.VCPUs > 0 {
		out = append(out, fmt.Sprintf("%d vCPUs", r.VCPUs))
	}
	out = append(out, amount(uint64(max(0, r.MemoryMB))<<20))
	if r.DiskGB > 0 {
		out = append(out, fmt.Sprintf("%d GiB disk", r.DiskGB))
	}
	return strings.Join(out, ", ")
}

// kinds are the types of moves for people.
var kinds = map[string]string{
	migration.TypeLiveMigration: "live migration", migration.TypeMigration: "cold migration", migration.TypeResize: "resize",
	migration.TypeRebuild: "rebuild", migration.TypeEvacuation: "evacuation",
}

func moveOf(m migration.Migration) move {
	out := move{
		UUID: m.UUID, Guest: cmp.Or(m.InstanceName, m.InstanceUUID), What: cmp.Or(kinds[m.MigrationType], m.MigrationType),
		From: m.SourceCompute, To: m.DestCompute, Status: string(m.Status), By: m.By,
		Begun: m.CreatedAt, Ended: m.UpdatedAt, Took: m.UpdatedAt.Sub(m.CreatedAt), Result: string(m.Outcome), Tone: "plain",
		Waits: m.Waits,
	}
	if m.InPlace || m.MigrationType == migration.TypeRebuild {
		out.To = out.From
	}
	switch m.Outcome {
	case migration.OutcomeCompleted:
		out.Tone = "good"
	case migration.OutcomeUndone, migration.OutcomeRefused, migration.OutcomeInDoubt:
		out.Tone = "bad"
	}
	if m.Error != nil {
		out.Error, out.Reasons = m.Error.Message, m.Error.Reasons
	}
	for _, r := range m.Refusals {
		out.Reasons = append(out.Reasons, fault.Reason{Message: r.DestCompute + " refused: " + r.Message})
	}
	if m.Done() {
		return out
	}
	for _, s := range m.Steps {
		out.Steps = append(out.Steps, stepOf(s, m))
	}
	if p := m.Progress; p.MemoryTotal+p.DiskTotal > 0 {
		t := transfer{
			Phase: p.Phase, Total: p.MemoryTotal + p.DiskTotal, Rate: p.Rate, Dirty: p.DirtyRate, Left: p.Remaining, Downtime: p.ExpectedDowntime,
			Iteration: p.Iteration, Throttle: p.Throttle, Never: p.Never, Next: p.Next,
		}
		left := min(p.MemoryRemaining+p.DiskRemaining, t.Total)
		t.Done = t.Total - left
		t.Percent = int(float64(t.Done) / float64(t.Total) * 100)
		out.Transfer = &t
	}
	return out
}

// stepOf says how far a step is.
func stepOf(s migration.StepRecord, m migration.Migration) step {
	out := step{Name: s.Name}
	switch {
	case s.Name == m.Step && m.Phase == task.Undoing:
		out.State, out.Words = "undone", "is being put back"
	case s.Name == m.Step:
		out.State, out.Words = "now", "now"
	case s.State == task.StepEnded:
		out.State, out.Words = "done", "done in "+rough(s.Duration)
	case s.State == task.StepUndone:
		out.State, out.Words = "undone", "was put back"
	case s.State == task.StepFailed:
		out.State, out.Words = "failed", cmp.Or(s.Error, "failed")
	default:
		out.State, out.Words = "ahead", "still to come"
	}
	return out
}

// amount is bytes for people, with binary units.
func amount(n uint64) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	if i == 0 || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return strings.Replace(fmt.Sprintf("%.1f %s", v, units[i]), ".0 ", " ", 1)
}

// rough is a duration as people say it.
func rough(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}

// stamp is a time for programs, and clock one for people without a script: theirs says it in
// their own zone.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func clock(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}
