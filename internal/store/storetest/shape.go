package storetest

import (
	"encoding"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Shape is the form that a record has as JSON, a line for each value in it: its path,
// its kind, and a question mark where it is left out when empty. Two programs whose
// records have the same shape read each other's.
func Shape(record any) string {
	var lines []string
	shape(reflect.TypeOf(record), "", "", nil, &lines)
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

func shape(t reflect.Type, path, mark string, above []reflect.Type, lines *[]string) {
	say := func(kind string) { *lines = append(*lines, strings.TrimPrefix(path+mark+" "+kind, ".")) }
	if t.Kind() == reflect.Pointer {
		shape(t.Elem(), path, mark, above, lines)
		return
	}
	for _, own := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if t.Implements(own) || reflect.PointerTo(t).Implements(own) {
			say(t.String())
			return
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		if slices.Contains(above, t) {
			say("again " + t.String())
			return
		}
		above = append(slices.Clip(above), t)
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-", !f.IsExported() && !f.Anonymous:
				continue
			case f.Anonymous && name == "":
				shape(f.Type, path, mark, above, lines)
				continue
			case name == "":
				name = f.Name
			}
			optional := ""
			if strings.Contains(options, "omit") {
				optional = "?"
			}
			shape(f.Type, path+mark+"."+name, optional, above, lines)
		}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			say("bytes")
			return
		}
		shape(t.Elem(), path+mark+"[]", "", above, lines)
	case reflect.Map:
		shape(t.Elem(), path+mark+"{"+t.Key().Kind().String()+"}", "", above, lines)
	default:
		say(t.Kind().String())
	}
}

// RequireShapes holds records, by what they are, against the file that says how those
// of this schema look. A change fails, and says what it asks for; with update it is
// written, which is the word that old records still read.
func RequireShapes(t *testing.T, file string, update bool, records map[string]any) {
	t.Helper()
	var out strings.Builder
	names := make([]string, 0, len(records))
	for name := range records {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&out, "# %s\n%s\n", name, Shape(records[name]))
	}
	if update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) == out.String() {
		return
	}
	was, is := strings.Split(string(want), "\n"), strings.Split(out.String(), "\n")
	gone := slices.DeleteFunc(slices.Clone(was), func(l string) bool { return slices.Contains(is, l) })
	fresh := slices.DeleteFunc(slices.Clone(is), func(l string) bool { return slices.Contains(was, l) })
	t.Errorf("%s: records have another shape\n  gone: %q\n  new:  %q\n"+
		"A new optional value reads in old records: go test -run Shape -update-shapes, and make the snapshot of agent/testdata anew.\n"+
		"Anything else needs a new schema in internal/store, an upgrade to it, and a snapshot of its own.", file, gone, fresh)
}
