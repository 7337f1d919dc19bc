package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestRemedies_EveryCommandParses reads every text of the program that names a command of berth or virsh,
// remedies before all, and parses it with the tree of commands: names, flags and the number of
// arguments. What is put in when it runs stands for itself, as X.
func TestRemedies_EveryCommandParses(t *testing.T) {
	root := (&app{parts: linked()}).root()
	top := map[string]bool{}
	for _, c := range root.Commands() {
		top[c.Name()] = true
	}
	n := 0
	for text, at := range textsOf(t, "../..") {
		for _, words := range commandsIn(text, top) {
			n++
			if err := parses(words); err != nil {
				t.Errorf("%s: %q: berth %s: %v", at, text, strings.Join(words, " "), err)
			}
		}
	}
	for text, at := range textsOf(t, "../..") {
		for _, m := range namesVirsh.FindAllStringSubmatch(text, -1) {
			words := shellWords(m[2])
			least, known := virshArguments[m[1]]
			for i := range least {
				if i >= len(words) || slices.Contains(notArguments, words[i]) || strings.HasPrefix(words[i], "what") {
					t.Errorf("%s: %q: virsh %s takes %d arguments", at, text, m[1], least)
					break
				}
			}
			if known {
				n++
			}
		}
	}
	if n < 100 {
		t.Errorf("%d commands found: the texts are not read", n)
	}
}

// textsOf gives the texts in the program's code, each with a place where it stands. Expressions
// that are joined with texts, and verbs of formats, are an X.
func textsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	files := gotoken.NewFileSet()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "test" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch e := n.(type) {
			case *ast.KeyValueExpr:
				// Help is read with the pages that are made of it.
				if key, is := e.Key.(*ast.Ident); is && slices.Contains([]string{"Long", "Short", "Example", "Use"}, key.Name) {
					return false
				}
			case *ast.BasicLit, *ast.BinaryExpr:
				if text, literal := joined(e.(ast.Expr)); literal {
					out[text] = files.Position(e.Pos()).String()
					return false
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var verb = regexp.MustCompile(`%\[?\d*\]?[+#]?[vsdqw]`)

// joined writes a sum of texts and other things, and reports whether a text is among them.
func joined(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != gotoken.STRING {
			return "X", false
		}
		text, err := strconv.Unquote(e.Value)
		return verb.ReplaceAllString(text, "X"), err == nil
	case *ast.ParenExpr:
		return joined(e.X)
	case *ast.BinaryExpr:
		if e.Op == gotoken.ADD {
			a, is := joined(e.X)
			b, too := joined(e.Y)
			return a + b, is || too
		}
	}
	return "X", false
}

var namesCommand = regexp.MustCompile(`(?:^|[\s(])berth ([a-z][^;:()\x60\n]*)`)

var namesVirsh = regexp.MustCompile(`(?:^|[\s(])virsh ([a-z-]+) ?([^;:()\x60\n]*)`)

// virshArguments are how many arguments virsh wants at least, of the commands that remedies have.
var virshArguments = map[string]int{
	"blockpull": 2, "detach-disk": 2, "domrename": 2, "undefine": 1, "define": 1, "edit": 1, "start": 1, "shutdown": 1, "destroy": 1, "domjobabort": 1,
	"net-define": 1, "net-start": 1, "pool-define": 1, "pool-start": 1, "secret-define": 1, "secret-set-value": 1, "managedsave-remove": 1, "snapshot-delete": 1, "checkpoint-delete": 1,
}

// commandsIn finds commands of berth in a text, each to the end of its clause.
func commandsIn(text string, top map[string]bool) [][]string {
	var out [][]string
	for _, m := range namesCommand.FindAllStringSubmatch(text, -1) {
		words := shellWords(m[1])
		// Whatever phase is meant, and what is completed elsewhere.
		if len(words) > 1 && words[0] == "external" && words[1] == "X" || strings.HasSuffix(text, " ") {
			continue
		}
		if len(words) > 0 && top[strings.TrimRight(words[0], ".,")] {
			out = append(out, words)
		}
	}
	return out
}

// shellWords splits a command; a comma or a full stop at the end of a word ends it.
func shellWords(text string) []string {
	var out []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimLeft(text, " ") {
		word := text
		if text[0] == '"' {
			if i := strings.IndexByte(text[1:], '"'); i >= 0 {
				out, text = append(out, text[1:i+1]), text[i+2:]
				if strings.HasPrefix(text, ",") || strings.HasPrefix(text, ".") {
					return out
				}
				continue
			}
		}
		if i := strings.IndexByte(text, ' '); i >= 0 {
			word = text[:i]
		}
		text = text[len(word):]
		if end := strings.TrimRight(word, ",."); end != word && word != "..." {
			return append(out, end)
		}
		out = append(out, word)
	}
	return out
}

// notArguments are words that are no argument of a command.
var notArguments = []string{"it", "its", "them", "the", "a", "each", "here", "there", "and", "or", "to", "with", "on", "for", "from", "first", "of", "then", "says", "tells", "if", "when", "where", "again"}

// parses reads words as far as they are a command: what follows it is prose. A flag or a
// placeholder that follows is no prose.
func parses(words []string) error {
	var first error
	for end := len(words); end > 0; end-- {
		if slices.Contains(notArguments, words[end-1]) {
			continue
		}
		err := understood(words[:end])
		if err == nil || strings.Contains(err.Error(), `invalid argument "X`) { // an amount
			for _, w := range words[end:] {
				if strings.HasPrefix(w, "-") && w != "-" {
					return fmt.Errorf("%s is not part of it", w)
				}
			}
			if end < len(words) && words[end] == "it" {
				return errors.New("it does not say of what")
			}
			if len(words) > 2 && words[1] == "settle" && words[2] == "X" && !(slices.Contains(words, "--guest-is-at") && slices.Contains(words, "--reason")) {
				return errors.New("a decision names the host and the reason")
			}
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}
