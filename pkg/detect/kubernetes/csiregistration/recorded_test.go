package csiregistration

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/fakecsi"
)

// TestCSIRegistrationRecorded: the CSINode of a real node, with drivers that listen where its drivers did.
func TestCSIRegistrationRecorded(t *testing.T) {
	n := newCSINode(t)
	files := checktest.Recorded(t, "testdata/csi-registration/recorded.txtar")
	recorded := &storagev1.CSINode{}
	if err := json.Unmarshal(files["csinode.json"], recorded); err != nil {
		t.Fatal(err)
	}
	n.host.Cluster.CSINode = func(context.Context) (*storagev1.CSINode, error) { return recorded, nil }
	drivers := map[string]*fakecsi.Driver{}
	for line := range strings.Lines(string(files["plugins_registry"])) {
		name, ok := strings.CutSuffix(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), "-reg.sock")
		if ok {
			drivers[name] = n.start(fakecsi.Options{Name: name})
		}
	}
	check := New(testCSISettings(), nil)
	expect := func(want ...string) { t.Helper(); checktest.Expect(t, check, n.host, want...) }
	expect()
	_ = drivers[fakeName].Abandon()
	expect("csi-driver/" + fakeName + "=CSISocketStale warning")
}
