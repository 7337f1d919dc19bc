package screen_test

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"berth/internal/screen"
)

func TestDocument_YAML_SaysWhatJSONSays(t *testing.T) {
	for _, v := range []any{
		map[string]any{"s": "yes", "n": "007", "null": "null", "b": "true", "t": "2026-01-01", "empty": "", "lines": "a\nb: c\n- d", "odd": "\x1b[0m # no: {comment}"},
		[]any{}, map[string]any{"a": nil, "list": []any{1.5, true, nil, "~", []any{"x"}, map[string]any{}}}, "text",
	} {
		var text strings.Builder
		if err := screen.Document(&text, v, true, ""); err != nil {
			t.Fatal(err)
		}
		var got any
		if err := yaml.Unmarshal([]byte(text.String()), &got); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%v: read back %v, %v, from\n%s", v, got, err, text.String())
		}
	}
}
