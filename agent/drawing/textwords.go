package drawing

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// legend explains the marks that stand in the picture, and no other.
func (p *page) legend() []line {
	h := p.host
	switch {
	case !h.Known:
		return []line{{plain("The hardware could not be read: see `berth status`.")}}
	case !h.Fitted:
		return []line{{plain("What guests may have is not known yet: see `berth status`.")}}
	}
	seen := seenIn(h)
	var out []line
	say := func(is bool, mark span, words string) {
		if is {
			out = append(out, line{plain("  "), {fmt.Sprintf("%-4s", mark.text), mark.colour}, plain("%s", words)})
		}
	}
	sample := "A"
	say(seen.free, span{markFree, ""}, "free; of a CPU: for one guest alone")
	say(seen.shared, span{markShared, dim}, "shared by vCPUs that have no CPU of their own")
	say(seen.own, span{markOwn, dim}, "the host's own")
	say(seen.held, span{sample, guestColour(0)}, "held by the guest of that letter, and by no other")
	say(seen.emulator, span{sample + "e", guestColour(0)}, "the same, for its emulator threads")
	say(seen.idle, span{sample + "i", guestColour(0)}, "the same, kept empty beside a CPU of the guest")
	say(seen.coming, span{"+", ""}, "on its way to a guest")
	say(seen.twice, span{sample + "/B", alarm}, "promised to both: see `berth status`")
	say(seen.stray, span{sample + "!", alarm}, "held by the guest, though it is no dedicated CPU")
	say(seen.lost, span{markLost, alarm}, "no guest can get it")
	return out
}

// sights are the kinds of marks in a picture.
type sights struct{ free, shared, own, held, emulator, idle, coming, twice, stray, lost bool }

func seenIn(h Host) sights {
	var s sights
	for _, p := range h.Sums {
		s.pool(p)
	}
	for _, c := range h.Cells {
		for _, core := range c.Cores {
			for _, cpu := range core.CPUs {
				s.cpu(cpu)
			}
		}
		for _, p := range c.Pools {
			s.pool(p)
		}
		s.groups(c.Groups)
	}
	s.groups(h.Loose)
	return s
}

func (s *sights) pool(p Pool) {
	s.held = s.held || len(p.Shares) > 0
	s.own = s.own || p.Reserved > 0
	s.free = s.free || p.over() < 0
	var sum int64
	for _, share := range p.Shares {
		sum += share.Pages
	}
	s.coming = s.coming || p.used() > sum
}

func (s *sights) cpu(c CPU) {
	for _, by := range c.Holders {
		s.held = s.held || by.Use == UsePinned
		s.emulator = s.emulator || by.Use == UseEmulator
		s.idle = s.idle || by.Use == UseIdle
	}
	if n := len(c.Holders); n > 0 {
		s.twice, s.stray = s.twice || n > 1, s.stray || n == 1 && c.Role != RoleDedicated
		return
	}
	s.free = s.free || c.Role == RoleDedicated
	s.shared = s.shared || c.Role == RoleShared
	s.own = s.own || c.Role == RoleOwn
}

func (s *sights) groups(list []Group) {
	for _, g := range list {
		for _, d := range g.Devices {
			s.twice = s.twice || len(d.Guests) > 1
			s.lost = s.lost || d.Unfit != ""
			s.held = s.held || len(d.Guests) > 0
			s.free = s.free || d.Unfit == "" && len(d.Guests) == 0
		}
	}
}

// guests lists who has what, in words.
func (p *page) guests() {
	h := p.host
	names := 0
	for _, g := range h.Guests {
		names = max(names, utf8.RuneCountInString(g.Name))
	}
	for i, g := range h.Guests {
		if i == 0 {
			p.put(nil)
		}
		p.put(line{
			plain("  "), {fmt.Sprintf("%-3s", g.Mark), guestColour(i)}, {fmt.Sprintf("%-*s", min(names, 32), g.Name), "1"}, plain("  %s", resources(g.Resources)),
		})
		for _, l := range guestPlace(g, p.width-5) {
			p.put(line{plain("     "), {l, dim}})
		}
	}
	if len(h.Unclaimed) > 0 {
		p.put(nil)
		for i, l := range fold(h.Unclaimed, p.width-25) {
			p.put(line{plain("%-25s", map[bool]string{true: "running without a claim:"}[i == 0]), {l, alarm}})
		}
	}
	if rest := notDrawn(h); rest != "" {
		p.put(nil)
		for _, l := range fold([]string{rest}, p.width) {
			p.put(line{{l, dim}})
		}
	}
}

// notDrawn names what the host has and the picture does not.
func notDrawn(h Host) string {
	var rest []string
	if !h.Offline.IsEmpty() {
		rest = append(rest, "offline CPUs "+h.Offline.String())
	}
	if h.Other > 0 {
		rest = append(rest, fmt.Sprintf("%d PCI %s that guests do not get", h.Other, plural(h.Other, "function")))
	}
	if len(rest) == 0 {
		return ""
	}
	return "not drawn: " + strings.Join(rest, ", ")
}

// guestPlace is what a guest's claims are and where it is by them, in lines.
func guestPlace(g Guest, width int) []string {
	var out []string
	for _, c := range g.Claims {
		holds := c.Holds
		if g.Floats {
			holds = append([]string{"floats over the shared CPUs and the memory of all cells"}, holds...)
		}
		if g.Forced {
			holds = append(holds[:len(holds):len(holds)], "does not fit: it was found so")
		}
		lines := fold(append([]string{c.Stands}, holds...), width-2)
		for i := 1; i < len(lines); i++ {
			lines[i] = "  " + lines[i]
		}
		out = append(out, lines...)
	}
	return out
}

// fold joins phrases to lines no wider than width; a phrase that is wider is broken between its
// words.
func fold(phrases []string, width int) []string {
	var out []string
	join := func(piece, by string) {
		if n := len(out); n > 0 && utf8.RuneCountInString(out[n-1]+by+piece) <= width {
			out[n-1] += by + piece
			return
		}
		out = append(out, piece)
	}
	for _, phrase := range phrases {
		if utf8.RuneCountInString(phrase) <= width {
			join(phrase, "; ")
			continue
		}
		by := "; "
		for _, word := range strings.Fields(phrase) {
			join(word, by)
			by = " "
		}
	}
	return out
}

func cellName(c Cell) string {
	if c.ID < 0 {
		return "CPUs of no cell"
	}
	return fmt.Sprintf("cell %d", c.ID)
}

// cellSize is what follows a cell's name.
func cellSize(c Cell) string {
	var out []string
	if n := len(c.Packages); n > 0 {
		ids := make([]string, n)
		for i, id := range c.Packages {
			ids[i] = fmt.Sprint(id)
		}
		out = append(out, plural(n, "package")+" "+strings.Join(ids, ","))
	}
	if c.MemoryBytes > 0 {
		out = append(out, bytes(c.MemoryBytes))
	}
	return strings.Join(append([]string{""}, out...), ", ")
}
