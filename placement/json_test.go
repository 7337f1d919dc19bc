package placement

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-2.5e3,true,false,null,"x\u00e9\n"],"b":{}}`, `[]`, `{nope`, `"`, `{"a":1,"a":2}`, `1 2`, `[[[[`, `"\q"`, "\"\x01\"", `-`, `01`, ``, ` {"a" : 1 } `,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := parseJSON(b)
		if err == nil && !json.Valid(b) {
			t.Errorf("%q was read as %v", b, v)
		}
		if err != nil && json.Valid(b) && utf8.Valid(b) && !tooDeep(b) {
			t.Errorf("%q was refused: %v", b, err)
		}
	})
}

func tooDeep(b []byte) bool {
	depth, most := 0, 0
	for _, c := range b {
		switch c {
		case '[', '{':
			depth++
			most = max(most, depth)
		case ']', '}':
			depth--
		}
	}
	return most >= deepest
}

func TestParseJSON_TooManyValues_AreRefused(t *testing.T) {
	list := func(n int) []byte { return []byte("[" + strings.Repeat("0,", n-2) + "0]") } // and the list itself
	if _, err := parseJSON(list(mostValues)); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
	if _, err := parseJSON(list(mostValues + 1)); err == nil || !strings.Contains(err.Error(), "Too many values") {
		t.Errorf("one more: %v", err)
	}
}

func TestParseJSON_SaysWhereLikePython(t *testing.T) {
	for in, want := range map[string]string{
		`{nope`:        "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
		"{\n \"a\" 1}": "Expecting ':' delimiter: line 2 column 6 (char 7)",
		`[1 2]`:        "Expecting ',' delimiter: line 1 column 4 (char 3)",
		`nope`:         "Expecting value: line 1 column 1 (char 0)",
		`{} {}`:        "Extra data: line 1 column 4 (char 3)",
		``:             "Expecting value: line 1 column 1 (char 0)",
	} {
		if _, err := parseJSON([]byte(in)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", in, err, want)
		}
	}
}

func TestRatio_IsWrittenAsPythonWritesAFloat(t *testing.T) {
	for f, want := range map[float64]string{
		1: "1.0", 2.5: "2.5", 0.1: "0.1", 0: "0.0", -1: "-1.0", 1000: "1000.0", 0.0001: "0.0001", 0.00001: "1e-05",
		1e15: "1000000000000000.0", 1e17: "1e+17", 1.5e16: "1.5e+16", 3.40282e+38: "3.40282e+38",
	} {
		if b, err := json.Marshal(ratio(f)); err != nil || string(b) != want {
			t.Errorf("%v is written %s, want %s (%v)", f, b, want, err)
		}
	}
}
