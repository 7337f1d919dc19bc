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
	for _, f := range list {
		err := DecodeFile(f, &c)
		if err != nil && !errors.Is(err, fault.Invalid) {
			// Absent or unreadable: as wrong as a wrong value, and for whoever starts the
			// agent as little a reason to try again.
			return c, fault.New(fault.Invalid, "read configuration: %w: see to that file, or name another with --config", err)
		}
		reasons = append(reasons, fault.ReasonsOf(err)...)
	}
	if len(reasons) == 0 {
		reasons = c.faults()
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
// line and key.
func DecodeFile(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	err = dec.Decode(v)
	if err == nil {
		return bareTimes(path, data, reflect.TypeOf(v))
	}
	var reasons []fault.Reason
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for i := range strict.Errors {
			r := reason(path, &strict.Errors[i], "config_unknown_key", "unknown key")
			if _, ours := v.(*Config); ours && len(strict.Errors[i].Key()) < 3 {
				r.Change = keysBeside(strict.Errors[i].Key())
			}
			reasons = append(reasons, r)
		}
	} else if one, ok := errors.AsType[*toml.DecodeError](err); ok {
		reasons = append(reasons, reason(path, one, "config_value", inWords(strings.TrimPrefix(one.Error(), "toml: "))))
	} else {
		reasons = append(reasons, fault.Reason{Code: "config_value", Message: fmt.Sprintf("%s: %v", path, strings.TrimPrefix(err.Error(), "toml: "))})
	}
	return fault.Refuse(fault.Invalid, "read "+path, reasons...)
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
