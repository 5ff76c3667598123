package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"reflect"
	"regexp"
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

// closed are the parts of a schema that forbid unknown members.
var closed = regexp.MustCompile(`,"additionalProperties":(false|{"not":{}})`)

// schemaOf returns the schema of a type's data, as JSON. It allows unknown members.
func schemaOf(kind event.Type, data any) (string, error) {
	severities := []any{string(finding.Fatal), string(finding.Warning), string(finding.Info)}
	schema, err := jsonschema.ForType(reflect.TypeOf(data), &jsonschema.ForOptions{
		TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[finding.Severity](): {Type: "string", Enum: severities},
			reflect.TypeFor[time.Time]():        {Type: "string", Format: "date-time"},
		}})
	if err != nil {
		return "", err
	}
	if _, fault := data.(event.Fault); fault { // a detector's has at least these
		schema.Required, schema.Properties["subject"].Required = []string{"check", "subject", "severity", "reason"}, []string{"kind"}
	}
	schema.Title = strings.TrimPrefix(string(kind), prefix)
	schema.Schema, schema.ID = "https://json-schema.org/draft/2020-12/schema", kind.Schema()
	text, err := json.Marshal(schema)
	var whole any
	err = errors.Join(err, json.Unmarshal(closed.ReplaceAll(text, nil), &whole))
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err = errors.Join(err, encoder.Encode(whole))
	return out.String(), err
}

// The schemas match the encoded types. "go test ./pkg/event/schemas -update" writes them. Removing a member, or making
// one required, breaks readers: that needs another version of the type.
func TestSchemas(t *testing.T) {
	for kind, data := range types() {
		name := strings.TrimPrefix(string(kind), prefix) + ".json"
		want, err := schemaOf(kind, data)
		if err == nil && *update {
			err = os.WriteFile(name, []byte(want), 0o644) //nolint:gosec // a source file
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(Of(name))); diff != "" && !*update {
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
