// Package docs reads the project's documentation as its tests do: pages, what is fenced in them,
// the commands of a shell in that, and links.
//
// It is for the tests that keep the pages true: that of the command line, which knows every command
// and flag, and this package's own, which runs blocks on two real hosts. It reads the pages,
// and writes nothing.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Page is one page.
type Page struct {
	Path   string // below the root that was read
	Text   string
	Blocks []Block
	// Guests and Domains are guests of host-a that the page is about, managed and not: it says so
	// in a comment, <!-- guests: web-1 --> or <!-- domains: web-1 -->.
	Guests, Domains []string
}

// Block is what stands between two fences.
type Block struct {
	Page string
	Line int      // of its first line, from 1
	Info []string // the words after the fence: the language first
	Text string
}

// Language is the first word after the fence; empty for none.
func (b Block) Language() string {
	if len(b.Info) == 0 {
		return ""
	}
	return b.Info[0]
}

// RunOn is the host on which the block is run: of `sh run HOST`; empty for one that is not.
func (b Block) RunOn() string {
	if len(b.Info) == 3 && b.Info[0] == "sh" && b.Info[1] == "run" {
		return b.Info[2]
	}
	return ""
}

// Dies is the host that loses its power where the page says so in a comment,
// <!-- dies: host-a -->; empty for a block that is one.
func (b Block) Dies() string {
	if b.Language() == "dies" {
		return b.Info[1]
	}
	return ""
}

// Where names the block as a compiler would.
func (b Block) Where() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Read reads pages below root: files, and folders with all that is in them.
func Read(root string, names ...string) (pages []Page, err error) {
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			below, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			page, err := parse(below, string(text))
			pages = append(pages, page)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

var about = regexp.MustCompile(`^<!-- (guests|domains|dies): ([a-z0-9 -]+?) -->$`)

func parse(path, text string) (Page, error) {
	p := Page{Path: path, Text: text}
	var open *Block
	indent := ""
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSuffix(line, "\n")
		bare := strings.TrimLeft(line, " ")
		switch {
		case open != nil && bare == "```":
			p.Blocks = append(p.Blocks, *open)
			open = nil
		case open != nil:
			open.Text += strings.TrimPrefix(line, indent) + "\n"
		case strings.HasPrefix(bare, "```"):
			indent = line[:len(line)-len(bare)]
			open = &Block{Page: path, Line: number + 1, Info: strings.Fields(strings.TrimPrefix(bare, "```"))}
		default:
			m := about.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			switch names := strings.Fields(m[2]); m[1] {
			case "guests":
				p.Guests = names
			case "domains":
				p.Domains = names
			default:
				p.Blocks = append(p.Blocks, Block{Page: path, Line: number, Info: []string{"dies", names[0]}})
			}
		}
	}
	if open != nil {
		return p, fmt.Errorf("%s: the block is not ended", open.Where())
	}
	return p, nil
}

// Command is one simple command of a block.
type Command struct {
	Where string   // page and line
	Words []string // the program first; without variables that are set for it
}

// Commands takes a block of sh apart. The pages use little of the shell: quotes, comments, line
// ends that are escaped, pipes, && and redirections. Anything else is an error.
func (b Block) Commands() (out []Command, err error) {
	var words []string
	where := b.Where()
	line := b.Line
	skip := false // the next word is where something is redirected to
	end := func() {
		for len(words) > 0 && assignment.MatchString(words[0]) {
			words = words[1:]
		}
		if len(words) > 0 {
			out = append(out, Command{where, words})
		}
		words, skip = nil, false
	}
	text := b.Text
	for len(text) > 0 {
		switch c := text[0]; {
		case strings.HasPrefix(text, "\\\n"):
			line++
			text = text[2:]
		case c == '\n':
			end()
			line++
			where = fmt.Sprintf("%s:%d", b.Page, line)
			text = text[1:]
		case c == ' ' || c == '\t':
			text = text[1:]
		case c == '#':
			i := strings.IndexByte(text, '\n')
			if i < 0 {
				i = len(text)
			}
			text = text[i:]
		case strings.HasPrefix(text, "&&"), strings.HasPrefix(text, "||"):
			end()
			text = text[2:]
		case c == '|' || c == ';':
			end()
			text = text[1:]
		case c == '>' || c == '<':
			text = strings.TrimPrefix(text[1:], ">")
			skip = true
		case strings.ContainsRune("`$&(){}", rune(c)):
			return nil, fmt.Errorf("%s: %q is more of the shell than the pages use", where, string(c))
		default:
			word, rest, err := shellWord(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", where, err)
			}
			if text = rest; !skip {
				words = append(words, word)
			}
			skip = false
		}
	}
	end()
	return out, nil
}

var assignment = regexp.MustCompile(`^[A-Z_]+=`)

// shellWord reads one word with its quotes.
func shellWord(text string) (word, rest string, err error) {
	var b strings.Builder
	for len(text) > 0 && !strings.ContainsRune(" \t\n|;<>&", rune(text[0])) {
		switch c := text[0]; c {
		case '\'', '"':
			i := strings.IndexByte(text[1:], c)
			if i < 0 {
				return "", "", fmt.Errorf("a quote is not ended")
			}
			quoted := text[1 : 1+i]
			if c == '"' && strings.ContainsAny(quoted, "$`\\") {
				return "", "", fmt.Errorf("%q holds more of the shell than the pages use", quoted)
			}
			b.WriteString(quoted)
			text = text[i+2:]
		case '$', '`':
			return "", "", fmt.Errorf("%q is more of the shell than the pages use", text[:1])
		case '\\':
			if len(text) == 1 {
				return "", "", fmt.Errorf("nothing follows a backslash")
			}
			b.WriteByte(text[1])
			text = text[2:]
		default:
			b.WriteByte(c)
			text = text[1:]
		}
	}
	return b.String(), text, nil
}

// Mention is what stands between backticks in prose or in a table.
type Mention struct {
	Where string // page and line
	Text  string
}

var spanForm = regexp.MustCompile("`([^`]+)`")

// Mentions are a page's, outside of its blocks, that begin with the name of a program and say more.
func (p Page) Mentions(program string) (out []Mention) {
	prose := fencedForm.ReplaceAllStringFunc(p.Text, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
	line := 1
	for paragraph := range strings.SplitSeq(prose, "\n\n") {
		for _, at := range spanForm.FindAllStringSubmatchIndex(paragraph, -1) {
			text := strings.ReplaceAll(paragraph[at[2]:at[3]], `\|`, "|") // as a table needs it
			if words := strings.Fields(text); len(words) > 1 && words[0] == program {
				out = append(out, Mention{fmt.Sprintf("%s:%d", p.Path, line+strings.Count(paragraph[:at[0]], "\n")), strings.Join(words, " ")})
			}
		}
		line += strings.Count(paragraph, "\n") + 2
	}
	return out
}

// Link is a link of a page to a file of the project.
type Link struct {
	Page, Target string // the file, relative to the root; the page itself for a link within it
	Anchor       string // of a heading there; empty for none
}

var (
	linkForm    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingForm = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	fencedForm  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
)

// Links are those of a page that lead to files.
func (p Page) Links() (out []Link) {
	for _, m := range linkForm.FindAllStringSubmatch(fencedForm.ReplaceAllString(p.Text, ""), -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		file, anchor, _ := strings.Cut(m[1], "#")
		target := p.Path
		if file != "" {
			target = filepath.Join(filepath.Dir(p.Path), file)
		}
		out = append(out, Link{p.Path, target, anchor})
	}
	return out
}

// Anchors are what the page's headings can be linked by.
func (p Page) Anchors() (out []string) {
	seen := map[string]int{}
	for _, m := range headingForm.FindAllStringSubmatch(fencedForm.ReplaceAllString(p.Text, ""), -1) {
		a := Anchor(m[1])
		if n := seen[a]; n > 0 {
			out = append(out, fmt.Sprintf("%s-%d", a, n))
		} else {
			out = append(out, a)
		}
		seen[a]++
	}
	return out
}

// Anchor is what GitHub makes of a heading.
func Anchor(heading string) string {
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
