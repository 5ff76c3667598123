package hosttest

const (
	PodUID      = "0f6d4d9c-3f4e-4c3b-9a53-1d2c3b4a5e6f"
	UnderUID    = "0f6d4d9c_3f4e_4c3b_9a53_1d2c3b4a5e6f"
	StaticUID   = "5d2f3a1b9c8e7d6f5a4b3c2d1e0f9a8b"
	ContainerID = "abababababababababababababababababababababababababababababababab"
)
