//! Volume and snapshot handles, in every form that csi-driver-nfs has written.
