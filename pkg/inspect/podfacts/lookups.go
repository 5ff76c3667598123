package podfacts

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

// Limits of one answer's requests to the apiserver: a client may make some five requests at once, then one a second.
const (
	maxObjects = 3
	maxClaims  = 1 // three requests each
)

// lookUp makes the requests that only a pod in trouble needs: images, and objects of the cluster.
func (g *gatherer) lookUp(ctx context.Context, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookupsLimit, fmt.Errorf("no answer within %s", lookupsLimit))
	defer cancel()
	if c, waits := podstate.WaitingContainer(pod); waits && len(g.facts.Runtime.Sandboxes) > 0 {
		g.askImage(ctx, podstate.ImageOf(pod, c.Name))
	}
	for _, v := range podstate.MountedVolumes(pod) {
		if g.facts.IsMissing(v.Name) {
			g.askVolume(ctx, v)
		}
	}
	if g.lookups.Events == nil {
		return
	}
	g.facts.Events, g.facts.EventsErr = within(ctx, lookupsLimit, "the apiserver",
		func(ctx context.Context) ([]corev1.Event, error) { return g.lookups.Events(ctx, pod) })
}

func (g *gatherer) askImage(ctx context.Context, image string) {
	if g.host.Runtime.HasImage == nil {
		return
	}
	here, err := within(ctx, lookupsLimit, "the container runtime", func(ctx context.Context) (bool, error) {
		return g.host.Runtime.HasImage(ctx, image)
	})
	if err == nil {
		g.facts.Runtime.Images = map[string]bool{image: here}
	}
}

// askVolume asks why a volume is not set up.
func (g *gatherer) askVolume(ctx context.Context, v corev1.Volume) {
	for _, o := range needed(v) {
		if g.lookups.Exists != nil && len(g.facts.Objects) < maxObjects {
			g.askObject(ctx, o)
		}
	}
	claim := ""
	switch {
	case v.CSI != nil:
		g.askDrivers(ctx)
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = g.facts.Name + "-" + v.Name
	}
	if claim != "" && g.lookups.Claim != nil && len(g.facts.Claims) < maxClaims {
		g.askClaim(ctx, podstage.Claim{Volume: v.Name, Name: claim})
	}
}

// needed returns the objects without which a volume cannot be set up.
func needed(v corev1.Volume) []podstage.Object {
	var all []podstage.Object
	add := func(kind, name string, optional *bool) {
		if name != "" && (optional == nil || !*optional) {
			all = append(all, podstage.Object{Kind: kind, Name: name, Volume: v.Name})
		}
	}
	switch {
	case v.ConfigMap != nil:
		add("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Optional)
	case v.Secret != nil:
		add("Secret", v.Secret.SecretName, v.Secret.Optional)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add("ConfigMap", s.ConfigMap.Name, s.ConfigMap.Optional)
			}
			if s.Secret != nil {
				add("Secret", s.Secret.Name, s.Secret.Optional)
			}
		}
	}
	return all
}

func (g *gatherer) askObject(ctx context.Context, o podstage.Object) {
	o.Exists, o.Err = within(ctx, lookupsLimit, "the apiserver", func(ctx context.Context) (bool, error) {
		return g.lookups.Exists(ctx, strings.ToLower(o.Kind), g.facts.Namespace, o.Name)
	})
	g.facts.Objects = append(g.facts.Objects, o)
}

// askDrivers asks which CSI drivers have registered, once.
func (g *gatherer) askDrivers(ctx context.Context) {
	d := &g.facts.Drivers
	if d.Asked {
		return
	}
	d.Asked = true
	node, err := within(ctx, lookupsLimit, "the apiserver", g.host.Cluster.CSINode)
	if err != nil && !apierrors.IsNotFound(err) { // a node without any registered driver has none
		d.Err = err
		return
	}
	if node != nil {
		for _, driver := range node.Spec.Drivers {
			d.Registered = append(d.Registered, driver.Name)
		}
	}
}

// askClaim follows a claim to its volume and its attachment to this node.
func (g *gatherer) askClaim(ctx context.Context, c podstage.Claim) {
	done, err := within(ctx, lookupsLimit, "the apiserver", func(ctx context.Context) (podstage.Claim, error) {
		return g.followClaim(ctx, c), nil
	})
	if err != nil {
		done, done.Err = c, err
	}
	g.facts.Claims = append(g.facts.Claims, done)
	if done.Driver != "" && !done.Attached {
		g.askDrivers(ctx)
	}
}

func (g *gatherer) followClaim(ctx context.Context, c podstage.Claim) podstage.Claim {
	claim, err := g.lookups.Claim(ctx, g.facts.Namespace, c.Name)
	if err != nil {
		return failed(c, "claim "+c.Name, err)
	}
	c.Phase, c.PV = string(claim.Status.Phase), claim.Spec.VolumeName
	if c.PV == "" || g.lookups.Volume == nil || g.lookups.Attachment == nil {
		return c
	}
	volume, err := g.lookups.Volume(ctx, c.PV)
	if err != nil {
		return failed(c, "volume "+c.PV, err)
	}
	if volume.Spec.CSI == nil {
		return c
	}
	c.Driver = volume.Spec.CSI.Driver
	name := attachmentName(volume.Spec.CSI.VolumeHandle, c.Driver, g.facts.Node)
	attachment, err := g.lookups.Attachment(ctx, name)
	switch {
	case apierrors.IsNotFound(err): // its driver may need none
		return c
	case err != nil:
		return failed(c, "", err)
	}
	c.Attachment, c.Attached = name, attachment.Status.Attached
	if e := attachment.Status.AttachError; e != nil {
		c.Attaching = e.Message
	}
	return c
}

func failed(c podstage.Claim, what string, err error) podstage.Claim {
	if apierrors.IsNotFound(err) {
		c.Missing = what
		return c
	}
	c.Err = err
	return c
}

// attachmentName is the name that kubelet's CSI plugin and the attach controller give to a VolumeAttachment:
// getAttachmentName in pkg/volume/csi/csi_attacher.go.
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}
