package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPretty_LaysOutLikePythonsPprint(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1,"a":[true,null,2.50,1e20,1E3,-1e999]}`: `{'a': [True, None, 2.5, 1e+20, 1000.0, -inf], 'b': 1}`,
		`[]`: `[]`,
		`["it's","\"","it's \"so\"","\u0007\u0098\ud83d\ude00\ue000\udbff\udfff\\ \n\r\t"]`: `["it's", '"', 'it\'s "so"', '\x07\x98😀\ue000\U0010ffff\\ \n\r\t']`,
		`{"aggregates":["83a3d69d-8920-48e2-8914-cadfd8fa2f91","99652f11-9f77-46b9-80b7-4b1989be9f8c"],"resource_provider_generation":0}`: `{'aggregates': ['83a3d69d-8920-48e2-8914-cadfd8fa2f91',
                '99652f11-9f77-46b9-80b7-4b1989be9f8c'],
 'resource_provider_generation': 0}`,
		`"a name of many words that goes on and on and does not fit into seventy-two columns of text"`: `('a name of many words that goes on and on and does not fit into '
 'seventy-two columns of text')`,
		`{"name":"a name of many words that goes on and on and does not fit into seventy-two columns of text","x":[[1,2],["it's","say \"so\""]]}`: `{'name': 'a name of many words that goes on and on and does not fit '
         'into seventy-two columns of text',
 'x': [[1, 2], ["it's", 'say "so"']]}`,
		`"unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken"`: `'unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken-unbroken'`,
		`["\u2603\u2603","line one\nline two which is so long that it is broken again, and then once more to be sure"]`: `['☃☃',
 'line one\n'
 'line two which is so long that it is broken again, and then once '
 'more to be sure']`,
	} {
		v, err := parseJSON([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, pretty(v)); d != "" {
			t.Errorf("%s (-want +got)\n%s", in, d)
		}
	}
}

// Which of several faults is told, and with what of the schema, is part of the
// answer.
func TestSchema_TellsTheFaultThatPythonTells(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"less deep first", `{"name":5,"x":1}`, `Additional properties are not allowed ('x' was unexpected)

Failed validating 'additionalProperties' in schema:
    {'additionalProperties': False,
     'properties': {'name': {'maxLength': 200, 'type': 'string'},
                    'parent_provider_uuid': {'anyOf': [{'format': 'uuid',
                                                        'type': 'string'},
                                                       {'type': 'null'}]}},
     'required': ['name'],
     'type': 'object'}

On instance:
    {'name': 5, 'x': 1}`},
		{"the reason that stands out of several", `{"name":"n","parent_provider_uuid":"nope"}`, `'nope' is not a 'uuid'

Failed validating 'format' in schema[0]:
    {'format': 'uuid', 'type': 'string'}

On instance:
    'nope'`},
		{"none stands out", `{"name":"n","parent_provider_uuid":5}`, `5 is not valid under any of the given schemas

Failed validating 'anyOf' in schema['properties']['parent_provider_uuid']:
    {'anyOf': [{'format': 'uuid', 'type': 'string'}, {'type': 'null'}]}

On instance['parent_provider_uuid']:
    5`},
		{"names in order", `{"name":"n","b":1,"a":2}`, `Additional properties are not allowed ('a', 'b' were unexpected)

Failed validating 'additionalProperties' in schema:
    {'additionalProperties': False,
     'properties': {'name': {'maxLength': 200, 'type': 'string'},
                    'parent_provider_uuid': {'anyOf': [{'format': 'uuid',
                                                        'type': 'string'},
                                                       {'type': 'null'}]}},
     'required': ['name'],
     'type': 'object'}

On instance:
    {'a': 2, 'b': 1, 'name': 'n'}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := parseJSON([]byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if err = providerBody.at(39).validate(v); err == nil {
				t.Fatal("nothing was wrong with it")
			}
			if d := cmp.Diff(c.want, err.Error()); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}
