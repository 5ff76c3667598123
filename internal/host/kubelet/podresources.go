package kubelet

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"unicode/utf8"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxPodResources bounds kubelet's answer, in bytes: some 250 pods with their devices and CPUs need far less.
const maxPodResources = 16 << 20

// PodNames lists kubelet's pods, as "namespace/name" with the number of pods of that name, over the API for device
// monitors (podresources.v1, on by default since 1.15). It needs no credentials: every client that can open the socket
// below kubelet's root may call it. It shows less than /pods. From k8s.io/kubernetes v1.36.3,
// pkg/kubelet/apis/podresources/server_v1.go:
//
//   - it has names and no UIDs, static pods under their full name, and no mirrors;
//   - since 1.34 (KubeletPodResourcesListUseActivePods) it lacks pods that have ended, before it has all of /pods;
//   - like /pods it lacks a force-deleted pod at once, although kubelet may still be terminating it (GetActivePods).
//
// trust is called with the connection before anything is sent: kubelet's directories are mounted into pods of monitors,
// and a pod that can write there could replace kubelet's socket with its own.
func PodNames(ctx context.Context, root string, trust func(conn net.Conn, socket string) error) (map[string]int,
	error) {
	socket := filepath.Join(root, "pod-resources", "kubelet.sock")
	conn, err := pluginDialer{[]string{root}}.dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	if err := trust(conn, socket); err != nil {
		conn.Close()
		return nil, err
	}
	answer, err := speakOn(ctx, conn, channel{socket, maxPodResources},
		func(conn *grpc.ClientConn) (*podresources.ListPodResourcesResponse, error) {
			return podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
		})
	if err != nil {
		return nil, err
	}
	names := make(map[string]int)
	for _, pod := range answer.GetPodResources() {
		namespace, name := pod.GetNamespace(), pod.GetName()
		if namespace == "" || name == "" || !utf8.ValidString(namespace+name) {
			return nil, fmt.Errorf("%s lists a pod %.100q in namespace %.100q", socket, name, namespace)
		}
		names[namespace+"/"+name]++
	}
	return names, nil
}
