package witness_test

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// A process of an earlier boot no longer exists.
func TestOtherKubeletOfAnotherBoot(t *testing.T) {
	seen := inspecttest.At(time.Hour)
	history := object.History{"other-kubelet": {Identity: object.Identity{Names: map[string]string{"kubelet": "x"}}, First: seen, Last: seen}}
	for boot, want := range map[string]bool{seen.Boot: true, "another": false} {
		now := inspecttest.At(time.Hour + time.Minute)
		now.Boot = boot
		var o witness.OtherKubelets
		o.Recall(history, now)
		if (o.Past != "") != want {
			t.Errorf("boot %s: %q", boot, o.Past)
		}
	}
}
