package stage

// OfWaiting returns the latest stage that a waiting container proves to have begun, by kubelet's reason; empty if it
// proves none. Kubelet reaches each of them after the sandbox.
func OfWaiting(reason string) ID {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable",
		"SignatureValidationFailed":
		return Pull
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError":
		return Start
	case "PostStartHookError", "CrashLoopBackOff":
		return PostStart
	}
	return ""
}
