package oci

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Media types and annotations: github.com/opencontainers/image-spec, image-layout.md and manifest.md.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"

	annotationTag  = "org.opencontainers.image.ref.name" // the tag alone, for all tools
	annotationName = "io.containerd.image.name"          // the whole name, for containerd
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// document is a manifest or an index.
type document struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        *descriptor       `json:"config,omitempty"`
	Layers        []descriptor      `json:"layers,omitempty"`
	Manifests     []descriptor      `json:"manifests,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// layout collects the files of an archive.
type layout struct {
	image   Image
	archive *tar.Writer
}

// Write writes the image of one program, or of several for different platforms, as one archive.
func (i Image) Write(w io.Writer, programs ...Program) error {
	if len(programs) == 0 {
		return errors.New("an image of no program")
	}
	name, tag, ok := cutTag(i.Reference)
	if !ok {
		return fmt.Errorf("image reference %q: want name:tag", i.Reference)
	}
	if !path.IsAbs(i.Path) {
		return fmt.Errorf("path in the image %q: must be absolute", i.Path)
	}
	l := layout{i, tar.NewWriter(w)}
	var manifests []descriptor
	for _, p := range programs {
		d, err := l.platform(p, len(programs) == 1)
		if err != nil {
			return err
		}
		manifests = append(manifests, d)
	}
	top := manifests[0]
	if len(manifests) > 1 {
		var err error
		if top, err = l.document(document{MediaType: typeIndex, Manifests: manifests}); err != nil {
			return err
		}
	}
	top.Annotations = map[string]string{annotationTag: tag, annotationName: name + ":" + tag}
	if err := l.json("index.json", document{SchemaVersion: 2, MediaType: typeIndex,
		Manifests: []descriptor{top}}); err != nil {
		return err
	}
	if err := l.json("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	return l.archive.Close()
}

// cutTag splits a reference; a colon before the last slash is a registry's port.
func cutTag(reference string) (name, tag string, ok bool) {
	colon := strings.LastIndexByte(reference, ':')
	if colon <= strings.LastIndexByte(reference, '/') || colon == len(reference)-1 {
		return "", "", false
	}
	return reference[:colon], reference[colon+1:], true
}

// platform adds the blobs of one program. Docker's older format knows no platforms, so it is added for a single program
// only.
func (l layout) platform(p Program, docker bool) (descriptor, error) {
	files, err := l.image.layer(p)
	if err != nil {
		return descriptor{}, err
	}
	config, err := l.image.config(p, files)
	if err != nil {
		return descriptor{}, err
	}
	layerBlob, err1 := l.blob(typeLayer, files.data)
	configBlob, err2 := l.blob(typeConfig, config)
	if err := errors.Join(err1, err2); err != nil {
		return descriptor{}, err
	}
	if docker {
		err := l.json("manifest.json", []map[string]any{{
			"Config": blobPath(configBlob.Digest), "RepoTags": []string{l.image.Reference},
			"Layers": []string{blobPath(layerBlob.Digest)},
		}})
		if err != nil {
			return descriptor{}, err
		}
	}
	d, err := l.document(document{MediaType: typeManifest, Config: &configBlob, Layers: []descriptor{layerBlob},
		Annotations: l.image.annotations()})
	d.Platform = &platform{p.Architecture, "linux"}
	return d, err
}

func (l layout) document(d document) (descriptor, error) {
	d.SchemaVersion = 2
	data, err := json.Marshal(d)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(d.MediaType, data)
}

func (l layout) blob(mediaType string, data []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(data), Size: len(data)}
	return d, addFile(l.archive, blobPath(d.Digest), 0o644, l.image.Created, data)
}

func (l layout) json(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return addFile(l.archive, name, 0o644, l.image.Created, data)
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
