package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// BusyboxImage has Debian's static busybox and a link for each of its applets.
const BusyboxImage = "localhost/busybox:1"

// image is the content of a docker-archive: one layer, with files of the host and links.
type image struct {
	ref        string
	files      map[string]string // path in the image -> file on the host
	links      map[string]string // path in the image -> target
	entrypoint []string
}

// ImportImage makes an image of files (path in the image -> file on the host; modes are kept) and imports it into
// containerd; pods with imagePullPolicy Never find it under ref.
func (l *Lab) ImportImage(ctx context.Context, ref string, files map[string]string, entrypoint []string) error {
	return l.importImage(ctx, image{ref: ref, files: files, entrypoint: entrypoint})
}

func (l *Lab) importImage(ctx context.Context, img image) error {
	archive, err := os.CreateTemp(filepath.Join(l.Dir, "images"), "*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(archive.Name()) // containerd has its own copy
	defer archive.Close()
	if err := img.write(archive); err != nil {
		return fmt.Errorf("make image %s: %w", img.ref, err)
	}
	if l.Paths.CRIODir != "" {
		return l.copyImage(ctx, archive.Name(), img.ref)
	}
	if _, err := l.ctr(ctx, "images", "import", archive.Name()); err != nil {
		return fmt.Errorf("import image %s: %w", img.ref, err)
	}
	return nil
}

func (l *Lab) ctr(ctx context.Context, args ...string) ([]byte, error) {
	return run(ctx, "", append([]string{l.Paths.Ctr, "--address", l.Paths.ContainerdSocket, "-n", "k8s.io"},
		args...)...)
}

// importBaseImages makes the sandbox image and busybox.
func (l *Lab) importBaseImages(ctx context.Context) error {
	pause := image{
		ref: sandboxImage, files: map[string]string{"pause": filepath.Join(l.Dir, "bin/pause")},
		entrypoint: []string{"/pause"},
	}
	if err := l.importImage(ctx, pause); err != nil {
		return err
	}
	applets, err := run(ctx, "", "/bin/busybox", "--list-full")
	if err != nil {
		return err
	}
	busybox := image{ref: BusyboxImage, files: map[string]string{"bin/busybox": "/bin/busybox"},
		links: map[string]string{}}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "bin/busybox" {
			busybox.links[applet] = "/bin/busybox"
		}
	}
	return l.importImage(ctx, busybox)
}

// write writes the image as a docker-archive: the layer, the configuration, and a manifest that names both.
func (img image) write(w io.Writer) error {
	layer, err := img.layer()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"created":      time.Unix(0, 0).UTC(),
		"config": map[string]any{
			"Entrypoint": img.entrypoint,
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"WorkingDir": "/",
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return err
	}
	configName, layerName := digest(config)+".json", digest(layer)+"/layer.tar"
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configName, "RepoTags": []string{img.ref}, "Layers": []string{layerName},
	}})
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	for _, file := range []struct {
		name string
		data []byte
	}{{layerName, layer}, {configName, config}, {"manifest.json", manifest}} {
		if err := addFile(archive, file.name, 0o644, file.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// layer returns the same bytes for the same files.
func (img image) layer() ([]byte, error) {
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	for _, dir := range img.folders() {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, Format: tar.FormatPAX}
		if dir == "tmp" {
			header.Mode = 0o1777
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(img.files)) {
		info, err := os.Stat(img.files[name])
		if err != nil {
			return nil, err
		}
		data, err := os.ReadFile(img.files[name])
		if err != nil {
			return nil, err
		}
		if err := addFile(archive, inside(name), info.Mode().Perm(), data); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(img.links)) {
		header := &tar.Header{Typeflag: tar.TypeSymlink, Name: inside(name), Linkname: img.links[name], Mode: 0o777,
			Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// folders returns every folder of the image, parents first, and /tmp.
func (img image) folders() []string {
	all := map[string]bool{"tmp": true}
	for _, names := range []map[string]string{img.files, img.links} {
		for name := range names {
			for dir := path.Dir(inside(name)); dir != "."; dir = path.Dir(dir) {
				all[dir] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// inside converts a path in the image to the relative one that a layer needs.
func inside(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func addFile(archive *tar.Writer, name string, mode os.FileMode, data []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: int64(len(data)),
		Format: tar.FormatPAX}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(data)
	return err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
