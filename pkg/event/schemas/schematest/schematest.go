// Package schematest validates events against their schemas, in the tests of all that make them.
package schematest

import (
	"encoding/json"
	"fmt"
	"path"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/nodeagent/nodeagent/pkg/event/schemas"
)

// Problem returns what is wrong with an event in structured JSON, which is that its data is not what its "dataschema"
// says; nil: nothing.
func Problem(text []byte) error {
	var e struct {
		Type, DataSchema string
		Data             any
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("an event: %w", err)
	}
	file := schemas.Of(path.Base(e.DataSchema))
	if file == nil {
		return fmt.Errorf("%s: there is no schema %q", e.Type, e.DataSchema)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(file, &schema); err != nil {
		return fmt.Errorf("%s: %w", e.DataSchema, err)
	}
	resolved, err := schema.Resolve(nil)
	if err == nil {
		err = resolved.Validate(e.Data)
	}
	if err != nil {
		return fmt.Errorf("%s: its data is not what %s says: %w\n%s", e.Type, e.DataSchema, err, text)
	}
	return nil
}
