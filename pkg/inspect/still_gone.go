package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// stillGoneLimit bounds one call of StillGone.
const stillGoneLimit = 10 * time.Second

// StillGone checks kubelet and the manifests of static pods once more for a pod proven to be gone. It is called right
// before a step, since the proof may be some steps old. A static pod comes back with its old UID if its manifest is put
// back. An error is the reason why the objects of the pod must not be touched; nil means that kubelet denies the pod
// now, and that no unread manifest could be the pod's.
func (i *Inspector) StillGone(ctx context.Context, pod object.Pod) error {
	if pod.UID == "" {
		return errors.New("its pod is not known")
	}
	ctx, cancel := context.WithTimeout(ctx, stillGoneLimit)
	defer cancel()
	scan := hostscan.New(ctx, i.host, hostscan.Deadline{})
	kubelet := witness.AskKubelet(ctx, scan)
	if kubelet.Err != nil {
		return fmt.Errorf("ask kubelet for pod %s again: %w", pod.UID, kubelet.Err)
	}
	if known, ok := kubelet.Pods[pod.UID]; ok {
		return fmt.Errorf("kubelet has pod %s again: %s/%s", pod.UID, known.Namespace, known.Name)
	}
	if up := verdict.UptimeGate("", "kubelet", kubelet.Age, kubelet.AgeErr, i.settings.KubeletUptime); !up.Open {
		return fmt.Errorf("whether kubelet has pod %s again is not known: %s", pod.UID, up.Why)
	}
	manifests := witness.ReadManifests(scan, kubelet.Pods) // after kubelet: a manifest not read yet has no pod there
	if file := manifests.UIDs[pod.UID]; file != "" {
		return fmt.Errorf("the manifest %s sets the UID %s for its pod", file, pod.UID)
	}
	static, why := maybeStatic(scan, pod.UID)
	switch {
	case kubelet.ByName():
		if static {
			return fmt.Errorf("pod %s may be a static one (%s), whose UIDs kubelet's podresources do not show", pod.UID, why)
		}
		return witness.StillGoneByName(ctx, scan, witness.Inventory{Kubelet: kubelet}, pod)
	case !static:
		return nil
	case manifests.Err != nil:
		return fmt.Errorf("pod %s may be a static one (%s): read the manifests: %w", pod.UID, why, manifests.Err)
	case len(manifests.Missing) > 0:
		return fmt.Errorf("pod %s may be a static one (%s): kubelet has no pod for the manifest of %s yet", pod.UID,
			why, manifests.Missing[0])
	}
	return nil
}

// maybeStatic reports whether a UID may belong to a static pod, and why.
func maybeStatic(scan *hostscan.Scan, uid string) (bool, string) {
	if len(uid) == 32 {
		return true, "its UID has 32 digits"
	}
	sandboxes, err := scan.Sandboxes()
	if err != nil {
		return true, "the runtime does not answer: " + err.Error()
	}
	for _, s := range sandboxes {
		if source := s.GetAnnotations()[witness.SourceAnnotation]; s.GetMetadata().GetUid() == uid && source != "" &&
			source != "api" {
			return true, "its source is " + source
		}
	}
	return false, ""
}
