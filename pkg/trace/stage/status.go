package stage

// OfWaiting returns the stage that a waiting container proves to have begun, by the reason that kubelet gives; empty if
// it proves none. Kubelet comes to each of them after the sandbox.
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
