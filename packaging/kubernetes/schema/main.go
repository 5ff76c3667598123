// Command schema prints values.schema.json of the Helm chart: a part written by hand for the chart's own values, and
// the agent's configuration, taken from its Go type. helm then rejects a misspelt key before any node sees it. The
// agent itself checks more (docs: "nodeagent config validate").
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
)

//go:embed chart.json
var chart []byte

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(2)
	}
}

func run(out io.Writer) error {
	var schema map[string]any
	if err := json.Unmarshal(chart, &schema); err != nil {
		return fmt.Errorf("chart.json: %w", err)
	}
	properties, ok := schema["properties"].(map[string]any)
	if !ok {
		return fmt.Errorf("chart.json: has no properties")
	}
	properties["config"] = schemaOf(reflect.TypeFor[config.Config]())
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(schema)
}

// duration matches the texts that time.ParseDuration reads; the empty string and bare numbers are not durations.
const duration = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

// schemaOf describes a type as the strict reader of the configuration takes it.
func schemaOf(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[checks.Settings]():
		properties := map[string]any{}
		for id, settings := range checks.DefaultSettings().ByID {
			properties[id] = schemaOf(reflect.TypeOf(settings))
		}
		for id, why := range checks.Removed() {
			properties[id] = map[string]any{"description": "ignored, this check was removed: " + why}
		}
		return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	case reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "string", "pattern": duration}
	case reflect.TypeFor[finding.Severity]():
		return map[string]any{"enum": []any{"", finding.Fatal, finding.Warning, finding.Info}}
	case reflect.TypeFor[condition.Vocabulary]():
		return map[string]any{"enum": []any{condition.Problem, condition.Ready}}
	case reflect.TypeFor[event.Mode]():
		return map[string]any{"enum": []any{event.Batch, event.Structured, event.Binary}}
	case reflect.TypeFor[release.Mode]():
		return map[string]any{"enum": []any{release.Off, release.DryRun, release.On}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Struct:
		properties := map[string]any{}
		addFields(properties, t)
		return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float64:
		return map[string]any{"type": "number", "minimum": 0}
	case reflect.String:
		return map[string]any{"type": "string"}
	}
	return map[string]any{}
}

// addFields adds the fields of a struct, and of those inlined in it, by their names in the file.
func addFields(properties map[string]any, t reflect.Type) {
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case !field.IsExported() || name == "-":
		case options == "inline":
			addFields(properties, field.Type)
		case name == "":
			properties[strings.ToLower(field.Name)] = schemaOf(field.Type)
		default:
			properties[name] = schemaOf(field.Type)
		}
	}
}
