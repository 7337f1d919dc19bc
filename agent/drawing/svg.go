package drawing

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strings"
	"unicode/utf8"
)

// CSS is the style of SVG's drawings, light and dark as the reader's machine is, for a page
// that holds one: its classes stand below .berth-drawing.
//
//go:embed drawing.css
var CSS string

// SVG draws the host as a document of its own, with its style.
func (h Host) SVG(w io.Writer) error {
	return h.svg(w, "<style>\n"+CSS+"</style>\n")
}

// Inline draws the host as an element of a page that has CSS among its styles: it has no
// style, script or link of its own, so that a strict content security policy lets it be.
func (h Host) Inline(w io.Writer) error { return h.svg(w, "") }

// Measures of the picture, in its own units; a browser scales it to what it has.
const (
	pageWidth = 960
	margin    = 16
	box       = 30 // how high a CPU or a function is
	cpuWidth  = 28 // six cores of two threads are side by side in a column
	rowGap    = 6
	textLine  = 16
	wideText  = 62 // of ten letters of the small text, about: no font can be asked here
)

func (h Host) svg(w io.Writer, style string) error {
	c := &canvas{host: h}
	c.y = margin + 14
	c.text(margin, c.y, "name", h.Name)
	c.text(margin, c.y+20, "words", h.Summary)
	c.y += 34
	c.cells()
	c.legend()
	c.guests()
	c.y += margin
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" class="berth-drawing" viewBox="0 0 %d %d" role="img" aria-label="%s">
%s<rect class="sheet" width="%d" height="%d"/>
%s</svg>
`, pageWidth, c.y, escape(h.Name+": "+h.Summary), style, pageWidth, c.y, c.b.String())
	return err
}

// canvas is a drawing on its way; y is where the next thing begins.
type canvas struct {
	host Host
	b    strings.Builder
	y    int
}

func escape(s string) string { return html.EscapeString(s) }

func (c *canvas) text(x, y int, class, text string) {
	fmt.Fprintf(&c.b, "<text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, escape(text))
}

// square is a CPU or a function: what it is above, who has it below, and all of it in words
// for whoever points at it.
func (c *canvas) square(x, y, width int, class, above, mark, words, instance string) {
	data := ""
	if instance != "" {
		data = fmt.Sprintf(" data-instance=%q", escape(instance))
	}
	fmt.Fprintf(&c.b, "<g class=\"%s\"%s><title>%s</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\"/>", class, data, escape(words), x, y, width, box)
	fmt.Fprintf(&c.b, "<text class=\"id\" x=\"%d\" y=\"%d\">%s</text>", x+width/2, y+10, escape(above))
	fmt.Fprintf(&c.b, "<text class=\"mark\" x=\"%d\" y=\"%d\">%s</text></g>\n", x+width/2, y+25, escape(mark))
}

// cells stand in two columns where there are two or more, below the host as a whole.
func (c *canvas) cells() {
	if len(c.host.Sums) > 0 {
		c.framed(margin, pageWidth-2*margin, allCells, func(x, width int) {
			for _, sum := range c.host.Sums {
				c.pool(sum, x, width)
			}
		})
		c.y += margin
	}
	columns := min(2, len(c.host.Cells))
	if columns == 0 {
		columns = 1
	}
	width := (pageWidth - 2*margin - (columns-1)*margin) / columns
	top, lowest := c.y, c.y
	for i, cell := range c.host.Cells {
		if i%columns == 0 {
			top = lowest
		}
		c.y = top
		x := margin + i%columns*(width+margin)
		c.framed(x, width, cellName(cell)+cellSize(cell), func(x, width int) { c.cell(cell, x, width) })
		lowest = max(lowest, c.y+margin)
	}
	c.y = lowest
	if len(c.host.Loose) > 0 {
		c.framed(margin, pageWidth-2*margin, "PCI functions whose cell nobody knows", func(x, width int) { c.groups(c.host.Loose, x, width) })
		c.y += margin
	}
}

// framed draws a frame around what is drawn inside it.
func (c *canvas) framed(x, width int, title string, inside func(x, width int)) {
	top, before := c.y, c.b.String()
	c.b.Reset()
	c.text(x+10, top+20, "title", title)
	c.y = top + 32
	inside(x+10, width-20)
	body := c.b.String()
	c.b.Reset()
	c.y += 4
	c.b.WriteString(before)
	fmt.Fprintf(&c.b, "<rect class=\"cell\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n%s", x, top, width, c.y-top, body)
}

func (c *canvas) cell(cell Cell, x, width int) {
	c.cores(cell, x, width)
	for _, p := range cell.Pools {
		c.pool(p, x, width)
	}
	c.groups(cell.Groups, x, width)
}

// cores are frames around their threads.
func (c *canvas) cores(cell Cell, x, width int) {
	if len(cell.Cores) == 0 {
		c.text(x, c.y+10, "words", "no CPU: memory only")
		c.y += textLine + rowGap
		return
	}
	at := x
	for _, core := range cell.Cores {
		wide := len(core.CPUs)*(cpuWidth+2) + 6
		if at > x && at+wide > x+width {
			at, c.y = x, c.y+box+6+rowGap
		}
		fmt.Fprintf(&c.b, "<rect class=\"core\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\"/>\n", at, c.y, wide, box+8)
		for i, cpu := range core.CPUs {
			class, mark, words, instance := c.cpu(cpu)
			c.square(at+4+i*(cpuWidth+2), c.y+4, cpuWidth, class, fmt.Sprint(cpu.ID), mark, words, instance)
		}
		at += wide + 6
	}
	c.y += box + 8 + 2*rowGap
}

// guestClasses is how many colours the style has for guests.
const guestClasses = 8

func guestClass(i int) string { return fmt.Sprintf("g%d", i%guestClasses) }

// cpu is what is shown of a CPU, and whose it is.
func (c *canvas) cpu(cpu CPU) (class, mark, words, instance string) {
	words = fmt.Sprintf("CPU %d: ", cpu.ID)
	if len(cpu.Holders) == 0 {
		switch cpu.Role {
		case RoleDedicated:
			return "free", "", words + "free, for one guest alone", ""
		case RoleShared:
			return "shared", markShared, words + "shared by vCPUs that have no CPU of their own", ""
		case RoleOwn:
			return "own", "", words + "the host's own", ""
		}
		return "own", "?", words + "nobody knows yet who may have it", ""
	}
	first := cpu.Holders[0]
	g := c.host.Guests[first.Guest]
	class, mark, instance = guestClass(first.Guest), g.Mark, g.Instance
	var by []string
	for _, o := range cpu.Holders {
		name := c.host.Guests[o.Guest].Name
		switch o.Use {
		case UseEmulator:
			by = append(by, "emulator threads of "+name)
		case UseIdle:
			by = append(by, "kept empty for "+name)
		default:
			by = append(by, fmt.Sprintf("vCPU %d of %s", o.VCPU, name))
		}
	}
	switch first.Use {
	case UseEmulator:
		mark += "e"
	case UseIdle:
		class += " idle"
		mark += "i"
	}
	words += strings.Join(by, " and ")
	if n := len(cpu.Holders); n > 1 {
		class, mark = class+" alarm", c.host.both(first.Guest, cpu.Holders[1].Guest, n)
	} else if cpu.Role == RoleShared || cpu.Role == RoleOwn {
		class, words = class+" alarm", words+", and it is no dedicated CPU"
	}
	return class, mark, words, instance
}

// pool is its numbers above a bar.
func (c *canvas) pool(p Pool, x, width int) {
	name := p.Size.String() + " pages"
	switch {
	case p.Name != "":
		name = p.Name
	case p.Ordinary:
		name = "memory"
	}
	class := "words"
	if p.over() > 0 {
		class = "words alarm"
	}
	c.text(x, c.y+10, class, name+": "+poolNumbers(p))
	c.y += 15
	whole := max(p.Total, p.Reserved+p.used(), 1)
	fmt.Fprintf(&c.b, "<rect class=\"pool\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"12\" rx=\"3\"/>\n", x, c.y, width)
	var done int64
	part := func(pages int64, class, words, instance string) {
		from, until := int(done*int64(width)/whole), int((done+pages)*int64(width)/whole)
		done += pages
		if pages <= 0 {
			return
		}
		data := ""
		if instance != "" {
			data = fmt.Sprintf(" data-instance=%q", escape(instance))
		}
		fmt.Fprintf(&c.b, "<g class=\"%s\"%s><title>%s</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"12\"/></g>\n", class, data, escape(words), x+from, c.y, max(1, until-from))
	}
	rest := p.used()
	for _, s := range p.Shares {
		g := c.host.Guests[s.Guest]
		part(s.Pages, guestClass(s.Guest), fmt.Sprintf("%s: %s of %s", name, pageWords(p, s.Pages), g.Name), g.Instance)
		rest -= s.Pages
	}
	part(rest, "coming", name+": "+pageWords(p, rest)+" on their way to a guest", "")
	done = max(done, p.Total-p.Reserved)
	part(p.Reserved, "own", name+": "+pageWords(p, p.Reserved)+", the host's own", "")
	c.y += 12 + rowGap
}

// pageWords is an amount of a pool.
func pageWords(p Pool, pages int64) string {
	if p.Ordinary {
		return bytes(pages * int64(p.Size))
	}
	if p.Name != "" {
		return fmt.Sprintf("%d", pages)
	}
	return fmt.Sprintf("%d %s", pages, plural(int(pages), "page"))
}

// functionWidth fits "1f.7" and is wider than a CPU.
const functionWidth = 36

func (c *canvas) groups(list []Group, x, width int) {
	for _, g := range list {
		c.y += 2
		c.text(x, c.y+10, "words", fmt.Sprintf("PCI %s, %s", g.Of, g.Product))
		c.y += 15
		at := x
		for _, d := range g.Devices {
			if at+functionWidth > x+width {
				at, c.y = x, c.y+box+4
			}
			class, mark, words, instance := c.device(d)
			c.square(at, c.y, functionWidth, class, fmt.Sprintf("%02x.%x", d.Address.Device, d.Address.Function), mark, words, instance)
			at += functionWidth + 4
		}
		c.y += box + rowGap
	}
}

func (c *canvas) device(d Device) (class, mark, words, instance string) {
	class, words = "free", fmt.Sprintf("%s, %s: ", d.Address, d.Type)
	var names []string
	for _, i := range d.Guests {
		names = append(names, c.host.Guests[i].Name)
	}
	if len(d.Guests) > 0 {
		g := c.host.Guests[d.Guests[0]]
		class, mark, instance = guestClass(d.Guests[0]), g.Mark, g.Instance
		words += strings.Join(names, " and ")
	}
	switch {
	case d.Unfit != "":
		return class + " alarm", mark + markLost, words + strings.TrimPrefix("; "+d.Unfit, "; "), instance
	case len(d.Guests) > 1:
		return class + " alarm", c.host.both(d.Guests[0], d.Guests[1], len(d.Guests)), words, instance
	case len(d.Guests) == 0:
		return class, mark, words + "free", instance
	}
	return class, mark, words, instance
}

// legend explains what stands in the picture, and nothing else.
func (c *canvas) legend() {
	h := c.host
	if !h.Known || !h.Fitted {
		words := "What guests may have is not known yet: see berth status."
		if !h.Known {
			words = "The hardware could not be read: see berth status."
		}
		c.text(margin, c.y+12, "words", words)
		c.y += textLine + rowGap
		return
	}
	seen, x := seenIn(h), margin
	for _, s := range []struct {
		is          bool
		class, mark string
		words       string
	}{
		{seen.free, "free", "", "free"},
		{seen.shared, "shared", markShared, "shared"},
		{seen.own, "own", "", "the host's own"},
		{seen.held, "g0", "A", "held by guest A"},
		{seen.emulator, "g0", "Ae", "for its emulator threads"},
		{seen.idle, "g0 idle", "Ai", "kept empty for it"},
		{seen.coming, "coming", "", "on its way to a guest"},
		{seen.twice, "g0 alarm", "A/B", "promised to both"},
		{seen.stray, "g0 alarm", "A", "though it is no dedicated CPU"},
		{seen.lost, "free alarm", markLost, "no guest can get it"},
	} {
		if !s.is {
			continue
		}
		wide := 30 + utf8.RuneCountInString(s.words)*wideText/10 + 12
		if x+wide > pageWidth-margin {
			x, c.y = margin, c.y+26
		}
		fmt.Fprintf(&c.b, "<g class=\"%s\"><rect x=\"%d\" y=\"%d\" width=\"24\" height=\"18\" rx=\"3\"/><text class=\"mark\" x=\"%d\" y=\"%d\">%s</text></g>\n",
			s.class, x, c.y, x+12, c.y+14, s.mark)
		c.text(x+30, c.y+13, "words", s.words)
		x += wide
	}
	c.y += 26 + rowGap
}

// twoColumns is from how many guests on their list has two. Arbitrary.
const twoColumns = 7

// guests lists who has what, in words.
func (c *canvas) guests() {
	h := c.host
	columns := 1
	if len(h.Guests) >= twoColumns {
		columns = 2
	}
	width := (pageWidth - 2*margin - (columns-1)*margin) / columns
	rows := (len(h.Guests) + columns - 1) / columns
	top, lowest := c.y, c.y
	for i := range h.Guests {
		if i%max(rows, 1) == 0 {
			c.y = top
		}
		c.guest(i, margin+i/rows*(width+margin), width)
		lowest = max(lowest, c.y)
	}
	c.y = lowest
	if len(h.Unclaimed) > 0 {
		for _, l := range fold(append([]string{"running without a claim: " + h.Unclaimed[0]}, h.Unclaimed[1:]...), (pageWidth-2*margin)*10/wideText) {
			c.text(margin, c.y+12, "words alarm", l)
			c.y += textLine + 2
		}
	}
	if rest := notDrawn(h); rest != "" {
		c.text(margin, c.y+12, "words dim", rest)
		c.y += textLine
	}
}

// guest is its mark, and beside it what it is and has.
func (c *canvas) guest(i, x, width int) {
	g := c.host.Guests[i]
	fmt.Fprintf(&c.b, "<g class=\"%s\" data-instance=\"%s\"><rect x=\"%d\" y=\"%d\" width=\"28\" height=\"18\" rx=\"3\"/><text class=\"mark\" x=\"%d\" y=\"%d\">%s</text></g>\n",
		guestClass(i), escape(g.Instance), x, c.y, x+14, c.y+14, g.Mark)
	fmt.Fprintf(&c.b, "<text class=\"words\" x=\"%d\" y=\"%d\"><tspan class=\"strong\">%s</tspan>  %s</text>\n",
		x+38, c.y+13, escape(g.Name), escape(resources(g.Resources)))
	c.y += textLine + 4
	for _, l := range guestPlace(g, (width-38)*10/wideText) {
		c.text(x+38, c.y+10, "words dim", l)
		c.y += textLine
	}
	c.y += 4
}
