package config

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// maxHostPorts bounds the ports that HostPorts returns.
const maxHostPorts = 64

// HostPorts returns the first host ports that a pod declares, without their names.
func HostPorts(s *corev1.PodSpec) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for _, containers := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range containers {
			for _, p := range containers[i].Ports {
				port := corev1.ContainerPort{HostPort: p.HostPort, Protocol: p.Protocol, HostIP: p.HostIP}
				if port.Protocol == "" {
					port.Protocol = corev1.ProtocolTCP
				}
				if p.HostPort == 0 || slices.Contains(ports, port) {
					continue
				}
				if ports = append(ports, port); len(ports) == maxHostPorts {
					return ports
				}
			}
		}
	}
	return ports
}
