package drawing

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"berth/internal/visible"
)

// Style is how a terminal likes it.
type Style struct {
	Width  int  // columns; below 60 is taken for 60, which is as narrow as it can be read
	Colour bool // with escape sequences of ECMA-48
	ASCII  bool // frames and marks of ASCII alone, for a terminal that has no other
}

// narrowest is what a cell needs with its bars and numbers. Arbitrary.
const narrowest = 60

// span is text of one colour; line is spans side by side.
type span struct {
	text   string
	colour string // parameters of SGR; empty for none
}
type line []span

func plain(format string, args ...any) span { return span{text: fmt.Sprintf(format, args...)} }

func (l line) width() int {
	n := 0
	for _, s := range l {
		n += utf8.RuneCountInString(s.text)
	}
	return n
}

// Colours of things that are no guest's.
const (
	dim   = "2"
	alarm = "1;31"
)

// guestColours are those of a terminal's own that can be read on black and on white; the
// marks tell guests apart where there are more.
var guestColours = []string{"1;36", "1;35", "1;32", "1;34", "1;33"}

func guestColour(i int) string { return guestColours[i%len(guestColours)] }

// Text draws the host for a terminal, no wider than its style says but for names that are.
func (h Host) Text(w io.Writer, style Style) error {
	p := &page{w: bufio.NewWriter(w), width: max(style.Width, narrowest), colour: style.Colour, ascii: style.ASCII, host: h}
	head := line{{h.Name, "1"}, plain(": %s", h.Summary)}
	if head.width() > p.width {
		p.put(line{{h.Name, "1"}})
		head = line{plain("%s", h.Summary)}
	}
	p.put(head)
	if len(h.Sums) > 0 {
		var lines []line
		for _, sum := range h.Sums {
			lines = append(lines, p.pool(sum))
		}
		p.put(nil)
		p.box(line{{allCells, "1"}}, nil, lines)
	}
	for _, c := range h.Cells {
		p.put(nil)
		p.cell(c)
	}
	if len(h.Loose) > 0 {
		p.put(nil)
		p.box(line{plain("no cell is known for these")}, nil, p.groups(h.Loose))
	}
	p.put(nil)
	for _, l := range p.legend() {
		p.put(l)
	}
	p.guests()
	return p.w.Flush()
}

const allCells = "the whole host"

// page is a drawing on its way to a terminal.
type page struct {
	w      *bufio.Writer
	width  int
	colour bool
	ascii  bool
	host   Host
}

// asASCII has something like it, one for one, for all that is drawn.
var asASCII = strings.NewReplacer("┌", "+", "┐", "+", "└", "+", "┘", "+", "─", "-", "│", "|", "▕", "[", "▏", "]", markFree, ".", "\uFFFD", "?")

// put writes a line. A failed write is kept by the writer until Flush.
func (p *page) put(l line) {
	var b strings.Builder
	for _, s := range l {
		s.text = visible.Text(s.text)
		if p.ascii {
			s.text = asASCII.Replace(s.text)
		}
		if p.colour && s.colour != "" && s.text != "" {
			fmt.Fprintf(&b, "\x1b[%sm%s\x1b[0m", s.colour, s.text)
			continue
		}
		b.WriteString(s.text)
	}
	fmt.Fprintln(p.w, strings.TrimRight(b.String(), " "))
}

// box frames lines under a title, with another at the right where it has room.
func (p *page) box(title, right line, lines []line) {
	inner := p.width - 4
	head := append(line{{"┌ ", dim}}, title...)
	head = append(head, plain(" "))
	rule := p.width - head.width() - 1
	if n := right.width() + 2; len(right) > 0 && rule > n {
		head = append(head, span{strings.Repeat("─", rule-n), dim}, plain(" "))
		head = append(append(head, right...), plain(" "))
	} else {
		head = append(head, span{strings.Repeat("─", max(0, rule)), dim})
	}
	p.put(append(head, span{"┐", dim}))
	for _, l := range lines {
		row := append(line{{"│ ", dim}}, l...)
		row = append(row, plain("%s", strings.Repeat(" ", max(0, inner-l.width()))), span{" │", dim})
		p.put(row)
	}
	p.put(line{{"└" + strings.Repeat("─", p.width-2) + "┘", dim}})
}

// label is how wide the words before what they are about are.
const label = 8

func labelled(word string, l ...span) line {
	return append(line{{fmt.Sprintf("%-*s", label, word), dim}}, l...)
}

func (p *page) cell(c Cell) {
	title, right := line{{cellName(c), "1"}, plain("%s", cellSize(c))}, line(nil)
	for i, d := range c.Far {
		if i == 0 {
			right = append(right, plain("distance"))
		}
		right = append(right, plain(" %d:%d", d.Cell, d.Cost))
	}
	var lines []line
	lines = append(lines, p.cores(c)...)
	for _, pool := range c.Pools {
		lines = append(lines, p.pool(pool))
	}
	lines = append(lines, p.groups(c.Groups)...)
	p.box(title, right, lines)
}

// cores puts as many cores beside each other as there is room for, each CPU's number above
// who has it.
func (p *page) cores(c Cell) []line {
	if len(c.Cores) == 0 {
		return []line{labelled("CPUs", plain("none: memory only"))}
	}
	columns := p.cpuWidth()
	var out []line
	numbers, marks := labelled("CPUs"), labelled("")
	for i, core := range c.Cores {
		n := len(core.CPUs)*(columns+1) - 1
		if i > 0 {
			if numbers.width()+3+n > p.width-4 {
				out = append(out, numbers, marks)
				numbers, marks = labelled(""), labelled("")
			} else {
				numbers, marks = append(numbers, span{" │ ", dim}), append(marks, span{" │ ", dim})
			}
		}
		for j, cpu := range core.CPUs {
			if j > 0 {
				numbers, marks = append(numbers, plain(" ")), append(marks, plain(" "))
			}
			m := p.cpu(cpu)
			numbers = append(numbers, span{fmt.Sprintf("%*d", columns, cpu.ID), dim})
			marks = append(marks, span{fmt.Sprintf("%*s", columns, m.text), m.colour})
		}
	}
	return append(out, numbers, marks)
}

// cpuWidth is one for the whole picture, so that cells stand below each other.
func (p *page) cpuWidth() int {
	n := 2
	for _, c := range p.host.Cells {
		for _, core := range c.Cores {
			for _, cpu := range core.CPUs {
				n = max(n, len(fmt.Sprint(cpu.ID)), utf8.RuneCountInString(p.cpu(cpu).text))
			}
		}
	}
	return n
}

// What stands for CPUs, memory and devices that no guest has.
const (
	markFree   = "·"
	markShared = "="
	markOwn    = "-"
	markLost   = "x"
)

// cpu is the mark of who has a CPU.
func (p *page) cpu(c CPU) span {
	switch {
	case len(c.Holders) > 1:
		return span{p.host.both(c.Holders[0].Guest, c.Holders[1].Guest, len(c.Holders)), alarm}
	case len(c.Holders) == 1 && c.Role != RoleDedicated && c.Role != RoleUnknown:
		return span{p.holder(c.Holders[0]) + "!", alarm}
	case len(c.Holders) == 1:
		return span{p.holder(c.Holders[0]), guestColour(c.Holders[0].Guest)}
	}
	switch c.Role {
	case RoleDedicated:
		return span{markFree, ""}
	case RoleShared:
		return span{markShared, dim}
	case RoleOwn:
		return span{markOwn, dim}
	}
	return span{"?", dim}
}

// both are the marks of two guests that one thing is promised to; of more the second is left out.
func (h Host) both(a, b, of int) string {
	if of > 2 {
		return h.Guests[a].Mark + "/+"
	}
	return h.Guests[a].Mark + "/" + h.Guests[b].Mark
}

func (p *page) holder(h Holder) string {
	suffix := map[Use]string{UseEmulator: "e", UseIdle: "i"}[h.Use]
	return p.host.Guests[h.Guest].Mark + suffix
}

// pool is a bar and the numbers beside it.
func (p *page) pool(pool Pool) line {
	name := pool.Size.String()
	switch {
	case pool.Name != "":
		name = pool.Name
	case pool.Ordinary:
		name = "memory"
	}
	l := labelled(name, span{"▕", dim})
	l = append(l, p.bar(pool, p.barWidth())...)
	colour := ""
	if pool.over() > 0 {
		colour = alarm
	}
	return append(l, span{"▏", dim}, plain(" "), span{p.numbers(pool), colour})
}

// leastBar is what a bar needs to say anything. Arbitrary.
const leastBar = 10

// besideBar is what else is in a line with a bar: frame, label, its ends and a blank.
const besideBar = 4 + label + 3

// barWidth is one for the whole picture: what the longest numbers leave.
func (p *page) barWidth() int {
	most := 0
	for _, sum := range p.host.Sums {
		most = max(most, utf8.RuneCountInString(p.numbers(sum)))
	}
	for _, c := range p.host.Cells {
		for _, pool := range c.Pools {
			most = max(most, utf8.RuneCountInString(p.numbers(pool)))
		}
	}
	return max(leastBar, p.width-besideBar-most)
}

// numbers are poolNumbers, or the beginning of them where the page is narrow.
func (p *page) numbers(pool Pool) string {
	text := poolNumbers(pool)
	if utf8.RuneCountInString(text) > p.width-besideBar-leastBar {
		text, _, _ = strings.Cut(text, ",")
	}
	return text
}

// over is how many pages more than there are are promised.
func (p Pool) over() int64 { return p.Reserved + p.used() - p.Total }

// used is what guests have; what is on its way is in Used and in no share.
func (p Pool) used() int64 {
	var sum int64
	for _, s := range p.Shares {
		sum += s.Pages
	}
	return max(sum, p.Used)
}

// poolNumbers say how much of a pool guests have. Of a cell's ordinary memory that is what they
// are bound to: guests that float have theirs anywhere.
func poolNumbers(p Pool) string {
	free := max(0, p.Total-p.Reserved-p.used())
	amount, what, held := func(pages int64) string { return fmt.Sprint(pages) }, "", "held"
	switch {
	case p.Ordinary:
		amount = func(pages int64) string { return bytes(pages * int64(p.Size)) }
		if p.Name == "" {
			held = "bound"
		}
	case p.Name == "":
		what = " " + plural(int(p.Total), "page")
	}
	out := fmt.Sprintf("%s of %s%s %s", amount(p.used()), amount(p.Total), what, held)
	if over := p.over(); over > 0 {
		return out + ", " + amount(over) + " TOO MANY"
	}
	if p.Reserved > 0 {
		out += ", " + amount(free) + " free"
	}
	if p.Ratio > 0 && p.Ratio != 1 {
		out += fmt.Sprintf(", ratio %g", p.Ratio)
	}
	return out
}

// bar draws a pool: shares of guests, what is on its way to one, the host's own at the right.
func (p *page) bar(pool Pool, width int) line {
	whole := max(pool.Total, pool.Reserved+pool.used(), 1)
	var out line
	var done int64
	at := 0
	draw := func(pages int64, mark, colour string) {
		done += pages
		until := int((done*int64(width) + whole/2) / whole)
		if n := until - at; n > 0 {
			out = append(out, span{repeat(mark, n), colour})
			at = until
		}
	}
	rest := pool.used()
	for _, s := range pool.Shares {
		draw(s.Pages, p.host.Guests[s.Guest].Mark, guestColour(s.Guest))
		rest -= s.Pages
	}
	draw(max(0, rest), "+", "")
	draw(max(0, pool.Total-pool.Reserved-pool.used()), markFree, dim)
	draw(pool.Reserved, markOwn, dim)
	return out
}

// repeat writes a mark again and again, n columns of it.
func repeat(mark string, n int) string {
	runes := []rune(mark)
	out := make([]rune, n)
	for i := range out {
		out[i] = runes[i%len(runes)]
	}
	return string(out)
}

// groups draw the functions that guests may have, card by card.
func (p *page) groups(list []Group) []line {
	var out []line
	word := "PCI"
	for _, g := range list {
		head := labelled(word, plain("%s ", g.Of), span{g.Product, dim})
		word = ""
		for i, d := range g.Devices {
			mark := p.device(d)
			piece := line{plain("  ")}
			if d.Address != g.Of || len(g.Devices) > 1 {
				piece = append(piece, span{fmt.Sprintf("%02x.%x ", d.Address.Device, d.Address.Function), dim})
			}
			piece = append(piece, mark)
			if head.width()+piece.width() > p.width-4 && i > 0 {
				out = append(out, head)
				head = labelled("", plain("%s", strings.Repeat(" ", len(g.Of.String()))))
			}
			head = append(head, piece...)
		}
		out = append(out, head)
	}
	return out
}

func (p *page) device(d Device) span {
	switch {
	case len(d.Guests) > 1:
		return span{p.host.both(d.Guests[0], d.Guests[1], len(d.Guests)), alarm}
	case len(d.Guests) == 1 && d.Unfit != "":
		return span{p.host.Guests[d.Guests[0]].Mark + markLost, alarm}
	case len(d.Guests) == 1:
		return span{p.host.Guests[d.Guests[0]].Mark, guestColour(d.Guests[0])}
	case d.Unfit != "":
		return span{markLost, alarm}
	}
	return span{markFree, ""}
}
