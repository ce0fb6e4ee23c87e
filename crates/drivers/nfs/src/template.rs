//! Templates in the parameter `subDir`.
