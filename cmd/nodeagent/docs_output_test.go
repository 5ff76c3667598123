package main

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/capture"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// TestOutputPage: docs/output.md is the contract of -o json. Each section names every field, and no former one.
func TestOutputPage(t *testing.T) {
	data, err := os.ReadFile("../../docs/output.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, part := range regexp.MustCompile("(?m)^`nodeagent ").Split(string(data), -1)[1:] {
		verb, _, _ := strings.Cut(part, "-o json`")
		sections[strings.TrimSpace(verb)] = part
	}
	names := regexp.MustCompile(`"([a-zA-Z]+)"`)
	for verb, types := range map[string][]any{
		"check": {checkResult{}, checkError{}, notApplicable{}},
		"inspect": {object.Report{}, object.Assessment{}, object.Object{}, object.Gate{}, object.Failure{},
			object.Holder{}},
		"inspect pod NAMESPACE/NAME": {podstage.Answer{}, podstage.Evidence{}},
		"inspect --explain OBJECT":   {explanation{}, object.Sighting{}},
		"capture":                    {capture.Manifest{}, capture.Member{}},
		"clean": {release.Step{}, release.Guards{}, release.Guard{}, release.Outcome{}, release.PodOutcome{},
			release.Savings{}},
		"status": {status.Status{}, status.SinkStatus{}, status.Seen{}, status.Readiness{}},
		"replay": {replayMatch{}},
	} {
		section, ok := sections[verb]
		if !ok {
			t.Errorf("no section about %q", verb)
			continue
		}
		named := map[string]bool{}
		for _, match := range names.FindAllStringSubmatch(section, -1) {
			named[match[1]] = true
		}
		for _, value := range types {
			of := reflect.TypeOf(value)
			for i := range of.NumField() {
				name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
				if name != "" && name != "-" && !named[name] && !strings.Contains(section, "`"+name+"`") {
					t.Errorf("%s: %s has the field %q, which the page lacks", verb, of, name)
				}
			}
		}
	}
}
