// Package schematest validates events against their schemas, in the tests of all packages that make events.
package schematest

import (
	"encoding/json"
	"fmt"
	"path"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/nodeagent/nodeagent/pkg/event/schemas"
)

// Problem returns how the data of an event in structured JSON violates its "dataschema", or nil.
func Problem(text []byte) error {
	var e struct {
		Type, DataSchema string
		Data             any
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("an event: %w", err)
	}
	s, ok := all()[path.Base(e.DataSchema)]
	if !ok {
		return fmt.Errorf("%s: there is no schema %q", e.Type, e.DataSchema)
	}
	err := s.err
	if err == nil {
		err = s.resolved.Validate(e.Data)
	}
	if err != nil {
		return fmt.Errorf("%s: its data is not what %s says: %w\n%s", e.Type, e.DataSchema, err, text)
	}
	return nil
}

type schema struct {
	resolved *jsonschema.Resolved
	err      error
}

// all holds the schemas by the names of their files. Reading one takes much longer than validating an event.
var all = sync.OnceValue(func() map[string]schema {
	found := map[string]schema{}
	for _, name := range schemas.Names() {
		var read jsonschema.Schema
		s := schema{err: json.Unmarshal(schemas.Of(name), &read)}
		if s.err == nil {
			s.resolved, s.err = read.Resolve(nil)
		}
		found[name] = s
	}
	return found
})
