package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"berth/internal/fault"
)

// Load reads the file and its drop-ins (path + ".d/*.toml", in name order) over
// Default, and validates the whole. A missing file is an error unless it is
// DefaultPath, where it means: nothing was set. All faults come together, as
// fault.Invalid.
func Load(path string) (Config, error) {
	c := Default()
	list, err := files(path)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	var reasons []fault.Reason
	var unread error // the first file that is absent or unreadable
	for _, f := range list {
		err := DecodeFile(f, &c)
		if err != nil && !errors.Is(err, fault.Invalid) {
			unread = cmp.Or(unread, err)
			continue
		}
		reasons = append(reasons, fault.ReasonsOf(err)...)
	}
	// A value that could not be read is the default, which has no fault; a time without a unit
	// was read, and is named already.
	read := slices.Clone(reasons)
	for _, r := range c.faults() {
		key, _, _ := strings.Cut(r.Message, " = ")
		if !slices.ContainsFunc(read, func(x fault.Reason) bool { return strings.Contains(x.Message, " "+key+" = ") }) {
			reasons = append(reasons, r)
		}
	}
	const change = "see to that file, or name another with --config"
	switch {
	case unread != nil && len(reasons) == 0:
		// As wrong as a wrong value, and for whoever starts the agent as little a reason to
		// try again.
		return c, fault.New(fault.Invalid, "read configuration: %w: "+change, unread)
	case unread != nil:
		reasons = append(reasons, fault.Reason{Code: "config_unreadable", Message: unread.Error(), Change: change})
	}
	if len(reasons) > 0 {
		return c, fault.Refuse(fault.Invalid, "read configuration", reasons...)
	}
	return c, nil
}

// Readable returns what the files set as far as they can be read, beside the error that Load
// gives of them. It is for a command that asks a running agent: it needs where the agent
// listens and the names of the peers, and no fault elsewhere may keep it from that. A value
// that cannot be read is Default's.
func Readable(path string) (Config, error) {
	c, err := Load(path)
	if err == nil {
		return c, nil
	}
	c = Default()
	list, listErr := files(path)
	if listErr != nil {
		return c, err
	}
	for _, f := range list {
		_ = DecodeFile(f, &c) // err has its faults already; what stands before them is set
	}
	if !filepath.IsAbs(c.Agent.SocketPath()) {
		c.Agent.Socket, c.Agent.RuntimeDir = "", Default().Agent.RuntimeDir
	}
	if !filepath.IsAbs(c.Agent.StateDir) {
		c.Agent.StateDir = Default().Agent.StateDir
	}
	return c, err
}

// listTOML gives a folder's *.toml in name order; none for a folder that does
// not exist.
func listTOML(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".toml") && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	slices.Sort(out)
	return out, nil
}

// DecodeDir decodes each *.toml of a folder in name order: each is called with
// the file's path and a decoder for it. A folder that does not exist has none.
func DecodeDir(dir string, each func(path string, into func(v any) error) error) error {
	files, err := listTOML(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		errs = append(errs, each(f, func(v any) error { return DecodeFile(f, v) }))
	}
	return errors.Join(errs...)
}

// DecodeFile lays one TOML file over v. Syntax errors, values of a wrong type
// and unknown keys are fault.Invalid with one reason each, which names file,
// line and key. Keys without a fault are set. After a syntax error the rest of the file is
// not read.
func DecodeFile(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	type located struct {
		line int
		fault.Reason
	}
	var faults []located
	// The reader stops at the first value of a wrong type. It is taken out, and the rest read.
	for {
		err := decode(data, reflect.New(reflect.TypeOf(v).Elem()).Interface())
		one, wrong := errors.AsType[*toml.DecodeError](err)
		if _, unknown := errors.AsType[*toml.StrictMissingError](err); unknown || !wrong {
			break
		}
		line, _ := one.Position()
		faults = append(faults, located{line, reason(path, one, "config_value", inWords(strings.TrimPrefix(one.Error(), "toml: ")))})
		rest, ok := without(data, line)
		if !ok {
			_ = decode(data, v) // what stands before it is set
			return fault.Refuse(fault.Invalid, "read "+path, faults[len(faults)-1].Reason)
		}
		data = rest
	}
	err = decode(data, v)
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for i := range strict.Errors {
			r := reason(path, &strict.Errors[i], "config_unknown_key", "unknown key")
			if _, ours := v.(*Config); ours && len(strict.Errors[i].Key()) < 3 {
				r.Change = keysBeside(strict.Errors[i].Key())
			}
			line, _ := strict.Errors[i].Position()
			faults = append(faults, located{line, r})
		}
	} else if err != nil {
		faults = append(faults, located{0, fault.Reason{Code: "config_value", Message: fmt.Sprintf("%s: %v", path, strings.TrimPrefix(err.Error(), "toml: "))}})
	}
	slices.SortStableFunc(faults, func(a, b located) int { return cmp.Compare(a.line, b.line) })
	var reasons []fault.Reason
	for _, f := range faults {
		reasons = append(reasons, f.Reason)
	}
	reasons = append(reasons, fault.ReasonsOf(bareTimes(path, data, reflect.TypeOf(v)))...)
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(fault.Invalid, "read "+path, reasons...)
}

func decode(data []byte, v any) error {
	return toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(v)
}

// without returns the document with the key of a line left blank, so that other lines keep
// their numbers; of a table's header the whole table. It is false for a document that is no
// TOML, or a line that no key begins at or before.
func without(data []byte, line int) ([]byte, bool) {
	type expression struct {
		line  int
		table bool
	}
	var list []expression
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		e := p.Expression()
		keys := e.Key()
		if !keys.Next() {
			return nil, false
		}
		list = append(list, expression{p.Shape(keys.Node().Raw).Start.Line, e.Kind != unstable.KeyValue})
	}
	if p.Error() != nil {
		return nil, false
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	at := -1
	for i, e := range list {
		if e.line <= line {
			at = i
		}
	}
	if at < 0 {
		return nil, false
	}
	end := len(lines) + 1
	for _, e := range list[at+1:] {
		if e.table || !list[at].table {
			end = e.line
			break
		}
	}
	for i := list[at].line - 1; i < end-1; i++ {
		lines[i] = []byte("\n")
	}
	return bytes.Join(lines, nil), true
}

func reason(path string, e *toml.DecodeError, code, text string) fault.Reason {
	line, _ := e.Position()
	r := fault.Reason{Code: code, Message: fmt.Sprintf("%s:%d: %s", path, line, text), Change: "correct the file"}
	if key := strings.Join(e.Key(), "."); key != "" {
		r.Message = fmt.Sprintf("%s:%d: %s: %s", path, line, key, text)
	}
	if code == "config_unknown_key" {
		r.Change = "remove it, or see the documented sample for its spelling"
	}
	return r
}

// keysBeside is what may stand where an unknown key does.
func keysBeside(key toml.Key) string {
	var sections, keys []string
	root := reflect.TypeFor[Config]()
	for i := range root.NumField() {
		section := root.Field(i)
		name := section.Tag.Get("toml")
		sections = append(sections, name)
		if len(key) < 2 || !strings.EqualFold(key[0], name) || section.Type.Kind() != reflect.Struct {
			continue
		}
		for j := range section.Type.NumField() {
			field := section.Type.Field(j)
			if field.Type.Kind() == reflect.Slice && field.Type.Elem().Kind() != reflect.String {
				return "remove it, or see the documented sample for its spelling" // it may be of one of the list's tables
			}
			keys = append(keys, field.Tag.Get("toml"))
		}
	}
	if len(keys) > 0 {
		return "remove it, or correct it: [" + strings.ToLower(key[0]) + "] has " + strings.Join(keys, ", ")
	}
	return "remove it, or correct it: the sections are " + strings.Join(sections, ", ")
}

// wrongType is how the reader tells a value of a wrong type: with names of this program's.
var wrongType = regexp.MustCompile(`^cannot decode TOML (\w+) into (?:struct field \S+ of type )?(\S+)$`)

// inWords says it with what is to be written.
func inWords(text string) string {
	m := wrongType.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	wants := "text in quotes"
	switch kind := strings.TrimLeft(m[2], "*"); {
	case strings.HasPrefix(kind, "[]"):
		wants = "a list in brackets"
	case kind == "bool":
		wants = "true or false"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		wants = "a whole number"
	case strings.HasPrefix(kind, "float"):
		wants = "a number"
	case slices.Contains(sectionTypes(), kind):
		wants = "a section of its own, in brackets"
	}
	has := map[string]string{
		"integer": "a whole number", "float": "a number with a point", "boolean": "true or false", "array": "a list", "string": "text", "table": "a section",
	}[m[1]]
	return "want " + wants + ", have " + cmp.Or(has, m[1])
}

func sectionTypes() (out []string) {
	root := reflect.TypeFor[Config]()
	for i := range root.NumField() {
		out = append(out, root.Field(i).Type.String())
	}
	return out
}
