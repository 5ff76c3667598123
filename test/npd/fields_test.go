package npd

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/node-problem-detector/pkg/systemlogmonitor"
	logtypes "k8s.io/node-problem-detector/pkg/systemlogmonitor/types"

	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

// fields lists the JSON fields of a struct: key and type, including those of embedded structs.
func fields(t reflect.Type) []string {
	var found []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			found = append(found, fields(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type.String()
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			kind = "list" // of structs that are compared by themselves
		}
		found = append(found, fmt.Sprintf("%s %s", name, kind))
	}
	slices.Sort(found)
	return found
}

// The one type that the agent mirrors instead of importing has the same keys.
func TestMirroredFields(t *testing.T) {
	if diff := cmp.Diff(fields(reflect.TypeFor[systemlogmonitor.MonitorConfig]()),
		fields(reflect.TypeFor[npd.LogConfig]())); diff != "" {
		t.Error(diff)
	}
	theirs, ours := fields(reflect.TypeFor[logtypes.Rule]()), fields(reflect.TypeFor[npd.LogRule]())
	for _, extra := range []string{"expiry string", "recoveryPattern string"} { // the agent's own
		ours = slices.DeleteFunc(ours, func(f string) bool { return f == extra })
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Error(diff)
	}
}
