//! ControllerPublishVolume and ControllerUnpublishVolume.

use wharf_driver::backend::{DeleteError, PublishError};
use wharf_linux::FsType;

use crate::fixture::*;

#[test]
fn publish_records_the_node() {
    let mut f = Fixture::with(FsType::Ext4, GIB, |config| config.max_volumes = 1);
    let (id, other) = (f.raw_volume("v", 16 * MIB).id, f.raw_volume("w", 16 * MIB).id);
    assert!(matches!(f.publish(&id, "n2", false), Err(PublishError::NotFound(_))));
    assert!(matches!(f.publish("vol-x", "n1", false), Err(PublishError::NotFound(_))));
    f.publish(&id, "n1", false).unwrap();
    f.publish(&id, "n1", false).unwrap();
    assert!(matches!(f.publish(&id, "n1", true), Err(PublishError::Incompatible(_))));
    assert!(matches!(f.publish(&other, "n1", false), Err(PublishError::Exhausted(_))));
    f.reopen();
    assert_eq!(f.get(&id).unwrap().unwrap().published_nodes, ["n1"]);
    assert!(matches!(f.delete(&id), Err(DeleteError::InUse(_))));
    f.unpublish(&id, Some("n2")).unwrap();
    assert_eq!(f.get(&id).unwrap().unwrap().published_nodes, ["n1"]);
    // Not while it is staged.
    f.attach(&id, &block()).unwrap();
    assert!(matches!(f.unpublish(&id, Some("n1")), Err(PublishError::InUse(_))));
    f.detach(&id).unwrap();
    f.unpublish(&id, None).unwrap();
    f.unpublish(&id, Some("n1")).unwrap();
    f.unpublish("vol-x", None).unwrap();
    f.publish(&other, "n1", true).unwrap();
    f.delete(&id).unwrap();
}

#[test]
fn volume_published_to_the_old_node_is_in_use_after_the_pool_moves() {
    let mut f = Fixture::with(FsType::Ext4, GIB, |_| ());
    let id = f.raw_volume("v", 16 * MIB).id;
    f.publish(&id, "n1", false).unwrap();
    f.config.node_id = "n2".into();
    f.reopen();
    assert!(matches!(f.publish(&id, "n2", false), Err(PublishError::InUse(_))));
    f.unpublish(&id, Some("n1")).unwrap();
    f.publish(&id, "n2", false).unwrap();
}
