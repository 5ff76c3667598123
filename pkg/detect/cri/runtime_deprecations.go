package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// runtime-deprecations reads the container runtime's Status over CRI, in which containerd (newer versions of 1.7, and
// 2) has
//
//	{"type": "ContainerdHasNoDeprecationWarnings", "status": false, "reason": "ContainerdHasDeprecationWarnings",
//	 "message": "{\"io.containerd.deprecation/pull-schema-1-image\":\"Schema 1 images are deprecated since …\"}"}
//
// for features used since it started that a later version drops: settings, images in old formats, and the host's cgroup
// v1. https://containerd.io/releases/#deprecated-features; `ctr deprecations list` shows the same.

// RuntimeDeprecations finds settings, images and features of this node that the next containerd does not support.
func RuntimeDeprecations() detect.Check {
	return detect.Check{
		ID:      "runtime-deprecations",
		Domain:  "kubernetes",
		Summary: "the node uses features that the next version of its container runtime does not have",
		Advice: "List what was used and when with `ctr deprecations list`. Before containerd is upgraded, change " +
			"/etc/containerd/config.toml (`containerd config migrate` of containerd 2 prints the new form), rebuild " +
			"the images or, for cgroup-v1, boot the node with cgroup v2.",
		Doc: detect.Doc{
			Reads: []string{"CRI Status over the runtime's socket"},
			Why:   "After an upgrade containerd rejects such a configuration, and such images cannot be pulled.",
			Faults: []detect.Fault{
				{Reason: "RuntimeFeatureDeprecated", Severity: finding.Info,
					When: "containerd's condition ContainerdHasNoDeprecationWarnings is false"},
			},
			FalseAlarms: "Other runtimes have no such condition. Accepted warnings can be named in containerd's " +
				"setting ignore_deprecation_warnings.",
		},
		Uses:   []host.Setting{host.CRISocket},
		Every:  time.Hour,
		Policy: finding.Policy{BlindAfter: 3 * time.Hour},
		Run:    observeDeprecations,
	}
}

func observeDeprecations(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Runtime.Status == nil {
		return nil, finding.NotApplicable("no container runtime is configured on this host")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := h.Runtime.Status(ctx)
	if err != nil && h.NodeName == "" && noSocket(ctx, h) {
		return nil, finding.NotApplicable("no container runtime serves %s on this host", h.Paths.CRISocket)
	}
	if err != nil {
		return nil, fmt.Errorf("status of the container runtime: %w", err)
	}
	conditions := answer.GetStatus().GetConditions()
	i := slices.IndexFunc(conditions, func(c *cri.RuntimeCondition) bool {
		return c.GetType() == "ContainerdHasNoDeprecationWarnings"
	})
	if i < 0 {
		return nil, finding.NotApplicable("the container runtime does not report deprecations")
	}
	if conditions[i].GetStatus() {
		return nil, nil
	}
	return []finding.Finding{deprecated(h, conditions[i].GetMessage())}, nil
}

// noSocket reports that there is no runtime: its socket does not exist.
func noSocket(ctx context.Context, h *host.Host) bool {
	return h.Plugins.Connect != nil && errors.Is(h.Plugins.Connect(ctx, h.Paths.CRISocket), fs.ErrNotExist)
}

// deprecated makes the finding from containerd's message: a JSON object from the ID of a warning to its text.
func deprecated(h *host.Host, message string) finding.Finding {
	var facts map[string]string
	var warnings map[string]string
	if json.Unmarshal([]byte(message), &warnings) == nil {
		ids := slices.Sorted(maps.Keys(warnings))
		var texts []string
		for i, id := range ids {
			texts = append(texts, strings.TrimSuffix(checkkit.Sanitize(warnings[id], 300), "."))
			ids[i] = checkkit.Sanitize(id, 100)
		}
		message, facts = strings.Join(texts[:min(len(texts), 3)], "; "),
			map[string]string{"deprecations": finding.JoinFirst(ids, 20)}
	}
	return finding.Finding{
		Subject: finding.Subject{Kind: "container-runtime", Name: h.Paths.CRISocket}, Severity: finding.Info,
		Reason: "RuntimeFeatureDeprecated", Facts: facts,
		Message: "features that a later containerd does not have are used here (`ctr deprecations list`): " +
			checkkit.Sanitize(message, 950),
	}
}
