package schemas

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

var update = flag.Bool("update", false, "write the schemas anew")

const prefix = "io.github.nodeagent."

// types are all types of events, with their data.
func types() map[event.Type]any {
	return map[event.Type]any{
		event.FaultRaised: event.Fault{}, event.FaultUpdated: event.Fault{}, event.FaultCleared: event.Fault{},
		event.LeftoverFound: event.Activity{}, event.LeftoverReleased: event.Activity{}, event.LeftoverGone: event.Activity{},
		event.ActionPlanned: event.Activity{}, event.ActionStarted: event.Activity{}, event.ActionSucceeded: event.Activity{},
		event.ActionFailed: event.Activity{}, event.ActionRefused: event.Activity{},
		event.NodeSnapshot: event.Snapshot{},
		event.AgentStarted: event.Agent{}, event.AgentStopping: event.Agent{}, event.AgentAlive: event.Agent{},
		event.AgentGap:    event.Gap{},
		event.PodEvidence: event.Evidence{},
		event.PodMissed:   event.Missed{}, event.SLOState: event.SLO{},
		event.OperatorAcknowledged: event.Operator{}, event.OperatorMuted: event.Operator{},
		event.OperatorCommented: event.Operator{}, event.OperatorMaintenance: event.Operator{},
		event.NodeBlind: event.Silence{}, event.NodeLost: event.Silence{}, event.NodeSeen: event.Silence{},
		event.NodeRemoved: event.Silence{}, event.ClusterSilent: event.Silence{}, event.ClusterSeen: event.Silence{},
		event.SubscriptionGap: event.Lost{},
	}
}

// schemaOf returns the schema of a type's data, as JSON.
func schemaOf(t *testing.T, kind event.Type, data any) []byte {
	t.Helper()
	severities := []any{string(finding.Fatal), string(finding.Warning), string(finding.Info)}
	schema, err := jsonschema.ForType(reflect.TypeOf(data), &jsonschema.ForOptions{
		TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[finding.Severity](): {Type: "string", Enum: severities},
			reflect.TypeFor[time.Time]():        {Type: "string", Format: "date-time"},
		}})
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(string(kind), prefix)
	schema.Schema, schema.ID = "https://json-schema.org/draft/2020-12/schema", "https://nodeagent.github.io/schemas/"+name+".json"
	schema.Title = name
	text, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	var whole any
	if err := json.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	open(whole)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(whole); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// open lets objects have unknown members.
func open(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		if closed, ok := s["additionalProperties"].(bool); ok && !closed {
			delete(s, "additionalProperties")
		}
		if other, ok := s["additionalProperties"].(map[string]any); ok && len(other) == 1 && other["not"] != nil {
			delete(s, "additionalProperties")
		}
		for _, value := range s {
			open(value)
		}
	case []any:
		for _, value := range s {
			open(value)
		}
	}
}

// The schemas match the encoded types. "go test ./pkg/event/schemas -update" writes them. Removing a member, or making
// one required, breaks readers: that needs another version of the type.
func TestSchemas(t *testing.T) {
	for kind, data := range types() {
		name := strings.TrimPrefix(string(kind), prefix) + ".json"
		want := schemaOf(t, kind, data)
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil { //nolint:gosec // a source file
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(string(want), string(Of(name))); diff != "" {
			t.Errorf("%s (-type +file):\n%s", name, diff)
		}
	}
	if got := len(Names()); !*update && got != len(types()) {
		t.Errorf("%d schemas of %d types", got, len(types()))
	}
	if Of("../schemas.go") != nil || Of("none.v1.json") != nil {
		t.Error("what is no schema is returned")
	}
}
